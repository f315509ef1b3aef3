"""The connection to a mail server: smtplib's, except that no wait can last longer than it may.

A socket's timeout starts anew with each byte, so a server that sends one now and then would hold it for ever.
Here a limit holds for a whole reply, and another for the whole exchange.
"""

from __future__ import annotations

import re
import smtplib
import socket
import time
from dataclasses import dataclass
from typing import Final

from jobqueue.bundled.email.reply import Reply, Stage
from jobqueue.bundled.email.server import Security, SmtpServer

_QUIT_SECONDS: Final = 2.0
_CHUNK: Final = 64 * 1024
_MAX_REPLY: Final = 64 * 1024  # bytes; a line has at most 512 (RFC 5321 section 4.5.3.1.5)


class SmtpTimeout(TimeoutError):
    """The server's answer, or the end of the exchange, took longer than it may."""


@dataclass(frozen=True, slots=True)
class Limits:
    """``answer``: seconds for one answer. ``deadline``: on ``time.monotonic()``, for everything; None for never."""

    answer: float
    deadline: float | None = None

    def until(self) -> float:
        """When an answer that is asked for now must be there."""
        end = time.monotonic() + self.answer
        return end if self.deadline is None else min(end, self.deadline)

    def left(self, until: float) -> float:
        """:raises SmtpTimeout: if nothing is left."""
        left = until - time.monotonic()
        if left <= 0:
            over = self.deadline is not None and time.monotonic() >= self.deadline
            raise SmtpTimeout("the attempt's time is used up" if over else f"no answer within {self.answer:g} s")
        return left


class Connection(smtplib.SMTP):
    """One connection. ``stage`` tells how far the exchange has come, for what an error says."""

    def __init__(self, server: SmtpServer, limits: Limits) -> None:
        # Without a host: smtplib would connect at once, by its own rules
        super().__init__(local_hostname=server.ehlo_name, timeout=limits.answer)
        self.server = server
        self.limits = limits
        self.stage = Stage.CONNECT
        self.handed_over = False
        """The last bytes of a mail are on their way, and no reply has come: the server may have taken it."""
        self._buffer = b""

    def open(self) -> Reply:
        """Connect and read the greeting."""
        self.sock = self._connected()
        if self.server.security is Security.TLS:
            self._wrap()
        return Reply.of(*self.getreply())

    def start_tls(self) -> Reply:
        """RFC 3207; what the server said before, and what it said too early, is forgotten."""
        reply = self.command(Stage.STARTTLS, "STARTTLS")
        if reply.code == 220:
            self._wrap()
        return reply

    def greet(self) -> Reply:
        self.stage = Stage.EHLO
        return Reply.of(*self.ehlo())

    def command(self, stage: Stage, line: str) -> Reply:
        self.stage = stage
        return Reply.of(*self.docmd(line))

    def send_mail(self, data: bytes) -> Reply:
        """After DATA: the mail, and the line that ends it."""
        self.stage = Stage.DATA
        # RFC 5321 section 4.5.2: a dot that begins a line is doubled
        stuffed = re.sub(rb"(?m)^\.", b"..", data) + b".\r\n"
        last = (len(stuffed) - 1) // _CHUNK * _CHUNK
        for start in range(0, last, _CHUNK):
            self.send(stuffed[start : start + _CHUNK])
        self.stage, self.handed_over = Stage.END, True
        self.send(stuffed[last:])
        reply = Reply.of(*self.getreply())
        self.handed_over = False
        return reply

    def leave(self) -> None:
        """Say QUIT and hang up. Whatever happens here changes nothing (RFC 5321 section 4.1.1.10)."""
        self.limits = Limits(_QUIT_SECONDS)
        try:
            if self.sock is not None:
                self.docmd("QUIT")
        except (OSError, smtplib.SMTPException):
            pass
        finally:
            self.close()

    def send(self, s: str | bytes) -> None:  # type: ignore[override]  # typeshed: ReadableBuffer
        """Overrides smtplib's, which would hide timeouts."""
        data = s.encode() if isinstance(s, str) else s
        sock = self._socket()
        sock.settimeout(self.limits.left(self.limits.until()))
        try:
            sock.sendall(data)
        except TimeoutError:
            raise SmtpTimeout(f"the server takes no data for {self.limits.answer:g} s") from None

    def getreply(self) -> tuple[int, bytes]:
        """Overrides smtplib's: one limit for the reply, whatever its number of bytes and lines."""
        until = self.limits.until()
        lines: list[bytes] = []
        size = 0
        while True:
            line = self._line(until)
            size += len(line)
            # RFC 5321 section 4.2: three digits, and a hyphen on all lines but the last
            if not re.match(rb"[2-5]\d\d([ \-]|$)", line) or size > _MAX_REPLY:
                raise smtplib.SMTPServerDisconnected("what the server sent is no SMTP reply")
            lines.append(line[4:].strip())
            if line[3:4] != b"-":
                return int(line[:3]), b"\n".join(lines)

    def _line(self, until: float) -> bytes:
        while b"\n" not in self._buffer:
            if len(self._buffer) > _MAX_REPLY:
                raise smtplib.SMTPServerDisconnected("what the server sent is no SMTP reply")
            self._buffer += self._received(until)
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.rstrip(b"\r")

    def _received(self, until: float) -> bytes:
        sock = self._socket()
        sock.settimeout(self.limits.left(until))
        try:
            data = sock.recv(4096)
        except TimeoutError:
            self.limits.left(until)
            raise SmtpTimeout("no answer in time") from None
        if not data:
            raise smtplib.SMTPServerDisconnected("the server closed the connection")
        return data

    def _connected(self) -> socket.socket:
        """Try the host's addresses one after the other, within the time for one answer."""
        until = self.limits.until()
        failure: OSError | None = None
        for family, kind, protocol, _, address in socket.getaddrinfo(
            self.server.host, self.server.port, type=socket.SOCK_STREAM
        ):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.settimeout(self.limits.left(until))
                sock.connect(address)
                return sock
            except OSError as error:
                sock.close()
                failure = error
        raise failure or OSError("the host has no address")

    def _wrap(self) -> None:
        assert self.server.tls is not None, "every security but NONE has a context"
        sock = self._socket()
        sock.settimeout(self.limits.left(self.limits.until()))
        # Bytes that came before the handshake are not the server's word (RFC 3207 section 6)
        self._buffer = b""
        self.sock = self.server.tls.wrap_socket(sock, server_hostname=self.server.host)

    def _socket(self) -> socket.socket:
        if self.sock is None:
            raise smtplib.SMTPServerDisconnected("the connection is closed")
        return self.sock
