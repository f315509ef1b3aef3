"""Real SMTP servers on real sockets: one that works (aiosmtpd), and one that does what a script tells it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import default as modern
from pathlib import Path
from typing import Any, Final

import trustme
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

HOST: Final = "127.0.0.1"


@dataclass(frozen=True)
class Received:
    """A mail as a server got it: the envelope and the bytes."""

    sender: str
    recipients: list[str]
    data: bytes

    @property
    def message(self) -> EmailMessage:
        message = BytesParser(policy=modern).parsebytes(self.data)
        assert isinstance(message, EmailMessage)
        return message


def unused_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server((HOST, 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


class Authority:
    """A certificate authority of a test, and a server's certificate by it."""

    def __init__(self, folder: Path, *names: str) -> None:
        authority = trustme.CA()
        self.ca_file = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(self.ca_file))
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(*(names or (HOST, "localhost"))).configure_cert(self.context)


class MailServer:
    """An SMTP server by aiosmtpd that keeps what it gets. ``login`` is the one (user, password) it takes."""

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        starttls: ssl.SSLContext | None = None,
        login: tuple[str, str] | None = None,
        smtputf8: bool = False,
    ) -> None:
        self.mails: list[Received] = []
        self.refusals: dict[str, str] = {}
        """The reply to RCPT, by recipient."""
        self._login = login
        self._controller = _Controller(
            self,
            hostname=HOST,
            port=0,
            ssl_context=tls,
            tls_context=starttls,
            require_starttls=starttls is not None,
            authenticator=self._authenticate if login else None,
            auth_required=login is not None,
            auth_require_tls=starttls is not None,
            enable_SMTPUTF8=smtputf8,
        )

    @contextmanager
    def running(self) -> Iterator[MailServer]:
        self._controller.start()
        try:
            yield self
        finally:
            self._controller.stop()

    @property
    def port(self) -> int:
        return self._controller.bound_port

    def _authenticate(
        self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: LoginPassword
    ) -> AuthResult:
        user, password = data.login.decode(), data.password.decode()
        return AuthResult(success=(user, password) == self._login, handled=False)

    # aiosmtpd's hooks
    async def handle_RCPT(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address in self.refusals:
            return self.refusals[address]
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        assert isinstance(envelope.content, bytes)
        self.mails.append(Received(envelope.mail_from or "", list(envelope.rcpt_tos), envelope.content))
        return "250 2.0.0 queued"


class _Controller(Controller):
    """With port 0: aiosmtpd would connect to port 0 to see whether it listens, not to the one it was given."""

    @property
    def bound_port(self) -> int:
        assert isinstance(self.server, asyncio.Server)
        port: int = self.server.sockets[0].getsockname()[1]
        return port

    def _trigger_server(self) -> None:
        self.port = self.bound_port
        super()._trigger_server()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Act:
    """What a scripted server does instead of replying."""

    what: str


SILENT: Final = Act("say nothing, and keep the connection")
CLOSE: Final = Act("close the connection")
RESET: Final = Act("reset the connection")
DRIP: Final = Act("send a reply that never ends, a byte at a time")
FLOOD: Final = Act("send lines of a reply that never ends")
START_TLS: Final = Act("reply 220 and go over to TLS")
INJECTED_START_TLS: Final = Act("the same, with a reply by an attacker in between")

Step = str | Act

_GOOD: Final[dict[str, Step]] = {
    "CONNECT": "220 test.example ESMTP",
    "EHLO": "250-test.example\r\n250 8BITMIME",
    "AUTH": "235 2.7.0 welcome",
    "MAIL": "250 2.1.0 OK",
    "RCPT": "250 2.1.5 OK",
    "DATA": "354 go ahead",
    "END": "250 2.0.0 queued",
    "QUIT": "221 2.0.0 bye",
}


@dataclass
class ScriptedServer:
    """An SMTP server on a plain socket that answers by script, one thread per connection.

    ``script`` gives for a stage (CONNECT, EHLO, STARTTLS, AUTH, MAIL, ``RCPT <address>``, RCPT, DATA, END, QUIT)
    the steps for its first, second, ... time; the last one stays. What has no script goes well.
    """

    script: dict[str, list[Step]] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None
    mails: list[Received] = field(default_factory=list)
    """Those that came to their final dot, whatever was answered then."""
    commands: list[str] = field(default_factory=list)
    connections: int = 0
    before_reply: dict[str, Callable[[], object]] = field(default_factory=dict)
    """By stage: what is done before its reply."""

    @contextmanager
    def running(self) -> Iterator[ScriptedServer]:
        self._open: list[socket.socket] = []
        self._listener = socket.create_server((HOST, 0))
        accepting = threading.Thread(target=self._accept, daemon=True)
        accepting.start()
        try:
            yield self
        finally:
            # shutdown: close alone would not wake accept
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            for connection in self._open:
                _hang_up(connection)
            accepting.join(10)

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        conversation = _Conversation(self, connection)
        with contextlib.suppress(OSError, _Over):
            conversation.run()
        conversation.lines.close()
        _hang_up(conversation.sock)

    def next_step(self, *stages: str) -> Step:
        for stage in stages:
            steps = self.script.get(stage)
            if steps:
                return steps.pop(0) if len(steps) > 1 else steps[0]
        return _GOOD.get(stages[-1], "502 5.5.1 unknown command")


class _Over(Exception):
    """The conversation is at its end."""


class _Conversation:
    def __init__(self, server: ScriptedServer, connection: socket.socket) -> None:
        self.server = server
        self.sock = connection
        self.sock.settimeout(60)
        self.lines: Any = connection.makefile("rb")
        self.sender = ""
        self.recipients: list[str] = []

    def run(self) -> None:
        self.play("CONNECT")
        while line := self.lines.readline():
            command = line.decode("utf-8", "replace").strip()
            self.server.commands.append(command)
            getattr(self, f"on_{command.split()[0].lower()}", self.on_other)(command)

    def on_other(self, command: str) -> None:
        self.play(command.split()[0].upper())

    def on_mail(self, command: str) -> None:
        self.sender, self.recipients = _path(command), []
        self.play("MAIL")

    def on_rcpt(self, command: str) -> None:
        recipient = _path(command)
        if self.play(f"RCPT {recipient}", "RCPT").startswith("2"):
            self.recipients.append(recipient)

    def on_data(self, command: str) -> None:
        if not self.play("DATA").startswith("354"):
            return
        data = b""
        while (line := self.lines.readline()) not in (b".\r\n", b""):
            data += line.removeprefix(b".")
        if line:
            self.server.mails.append(Received(self.sender, list(self.recipients), data))
            self.play("END")

    def on_quit(self, command: str) -> None:
        self.play("QUIT")
        raise _Over

    def play(self, *stages: str) -> str:
        """Do the next step of the script, and return what was said."""
        self.server.before_reply.get(stages[-1], lambda: None)()
        step = self.server.next_step(*stages)
        if isinstance(step, str):
            self.sock.sendall(step.encode() + b"\r\n")
            return step
        if step in (START_TLS, INJECTED_START_TLS):
            self.go_over_to_tls(b"" if step == START_TLS else b"250-evil.example\r\n250 AUTH PLAIN\r\n")
            return ""
        elif step == SILENT:
            while self.lines.read(4096):
                pass
        elif step in (DRIP, FLOOD):
            while True:
                self.sock.sendall(b"250-" + b"x" * 500 + b"\r\n" if step == FLOOD else b"2")
                time.sleep(0 if step == FLOOD else 0.02)
        elif step == RESET:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise _Over

    def go_over_to_tls(self, injected: bytes) -> None:
        assert self.server.tls is not None
        self.sock.sendall(b"220 go ahead\r\n" + injected)
        self.lines.close()
        self.sock = self.server.tls.wrap_socket(self.sock, server_side=True)
        self.lines = self.sock.makefile("rb")


def _path(command: str) -> str:
    return command.partition("<")[2].partition(">")[0]


def _hang_up(connection: socket.socket) -> None:
    # A file made of the socket keeps it open: shutdown does not care
    with contextlib.suppress(OSError):
        if not _resets(connection):
            connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _resets(connection: socket.socket) -> bool:
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER) != 0
