"""A TCP proxy in front of the PostgreSQL server, for connections that break, stall or answer late.

It knows just enough of the protocol to act on a *flight*: what a client sends before it waits for an answer.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import URL

Action = Callable[[], object]

_NOT_ENDING_A_FLIGHT: Final = frozenset(b"PBDEHCd")
_STARTUP_HEADER: Final = 4
_HEADER: Final = 5
_READY: Final = b"Z\x00\x00\x00\x05"


@dataclass
class Rule:
    """What to do at the ``nth`` flight that contains ``text``, in a transaction that also contains ``within``."""

    text: bytes
    action: Action
    within: bytes
    after: bool
    application: str | None
    seen: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    nth: int = 1
    hit: threading.Event = field(default_factory=threading.Event)
    """Set when the action has run."""

    def matches(self, flight: bytes, transaction: bytes, application: str) -> bool:
        fits = self.text in flight and self.within in transaction and self.application in (None, application)
        return fits and next(self.seen) == self.nth


class Proxy:
    """``url`` leads through it. ``before`` and ``after`` add rules; a rule counts flights of all connections."""

    def __init__(self, server: URL) -> None:
        self._address = _address(server)
        self._listener = socket.create_server(("127.0.0.1", 0))
        host, port = self._listener.getsockname()[:2]
        plain = {"sslmode": "disable", "gssencmode": "disable"}
        self.url = server.difference_update_query(["host", "port"]).update_query_dict(plain).set(host=host, port=port)
        self.refusing = False
        self.flowing = threading.Event()
        self.flowing.set()
        self.rules: list[Rule] = []
        self._links: set[_Link] = set()
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def before(self, text: bytes, action: Action, *, within: bytes = b"", app: str | None = None, nth: int = 1) -> Rule:
        """Act before the flight goes to the server; it does not, if the action cuts the connection."""
        return self._add(Rule(text, action, within, False, app, nth=nth))

    def after(self, text: bytes, action: Action, *, within: bytes = b"", app: str | None = None, nth: int = 1) -> Rule:
        """Act when the server has answered, before the client hears of it."""
        return self._add(Rule(text, action, within, True, app, nth=nth))

    def cut(self) -> None:
        """Break all connections."""
        for link in self._links.copy():
            link.close()

    def go_away(self) -> None:
        """Break all connections and take no new ones, until ``come_back``."""
        self.refusing = True
        self.cut()

    def come_back(self) -> None:
        self.refusing = False

    def stall(self) -> None:
        """Pass on nothing, in either direction, while all connections stay; ``flowing.set()`` ends it."""
        self.flowing.clear()

    def close(self) -> None:
        self.refusing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self.flowing.set()

    def forget(self, link: _Link) -> None:
        self._links.discard(link)

    def _add(self, rule: Rule) -> Rule:
        self.rules.append(rule)
        return rule

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                client.close()
                continue
            link = _Link(self, client, _connected(self._address))
            self._links.add(link)
            link.start()


@contextmanager
def proxy_to(server: URL) -> Iterator[Proxy]:
    proxy = Proxy(server)
    try:
        yield proxy
    finally:
        proxy.close()


class _Link:
    """One client's connection, and the one to the server that belongs to it."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._application = ""
        self._transaction = b""
        self._answer = threading.Condition()
        self._held: bytes | None = None
        """What the server answered while a rule holds it back."""
        self._closed = False

    def start(self) -> None:
        for pump in (self._pump_up, self._pump_down):
            threading.Thread(target=self._guarded, args=(pump,), name="proxy-link", daemon=True).start()

    def close(self) -> None:
        self._closed = True
        with self._answer:
            self._answer.notify_all()
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._proxy.forget(self)

    def _guarded(self, pump: Callable[[], None]) -> None:
        with contextlib.suppress(OSError):
            pump()
        self.close()
        # Each pump closes what it reads from, so that no descriptor is closed while the other reads
        (self._client if pump == self._pump_up else self._server).close()

    def _pump_up(self) -> None:
        flights = _flights(self._client)
        startup = next(flights, b"")
        self._application = _application(startup)
        self._server.sendall(startup)
        for flight in flights:
            self._proxy.flowing.wait()
            self._pass_up(flight)
            if self._closed:
                return

    def _pass_up(self, flight: bytes) -> None:
        self._transaction += flight
        rules = [r for r in self._proxy.rules if r.matches(flight, self._transaction, self._application)]
        if b"COMMIT" in flight or b"ROLLBACK" in flight:
            self._transaction = b""
        for rule in rules:
            if not rule.after:
                rule.action()
                rule.hit.set()
        if self._closed:
            return
        late = [rule for rule in rules if rule.after]
        if late:
            with self._answer:
                self._held = b""
        self._server.sendall(flight)
        if late:
            self._hold_answer(late)

    def _hold_answer(self, rules: list[Rule]) -> None:
        with self._answer:
            self._answer.wait_for(lambda: self._closed or _READY in (self._held or b"")[-6:])
        for rule in rules:
            rule.action()
            rule.hit.set()
        with self._answer:
            held, self._held = self._held or b"", None
            if not self._closed:
                self._client.sendall(held)

    def _pump_down(self) -> None:
        while data := self._server.recv(65536):
            self._proxy.flowing.wait()
            with self._answer:
                if self._held is None:
                    self._client.sendall(data)
                else:
                    self._held += data
                    self._answer.notify_all()


def _flights(client: socket.socket) -> Iterator[bytes]:
    """The startup message, then flight by flight."""
    reader = client.makefile("rb")
    with reader:
        header = reader.read(_STARTUP_HEADER)
        yield header + reader.read(int.from_bytes(header, "big") - _STARTUP_HEADER)
        flight = b""
        while len(header := reader.read(_HEADER)) == _HEADER:
            flight += header + reader.read(int.from_bytes(header[1:], "big") - _STARTUP_HEADER)
            if header[0] not in _NOT_ENDING_A_FLIGHT:
                yield flight
                flight = b""


def _application(startup: bytes) -> str:
    words = startup[8:].split(b"\x00")
    parameters = dict(zip(words[::2], words[1::2], strict=False))
    return parameters.get(b"application_name", b"").decode()


def _address(server: URL) -> str | tuple[str, int]:
    host = server.query.get("host") or server.host or "127.0.0.1"
    port = int(str(server.query.get("port") or server.port or 5432))
    assert isinstance(host, str)
    return f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)


def _connected(address: str | tuple[str, int]) -> socket.socket:
    if isinstance(address, tuple):
        return socket.create_connection(address)
    server = socket.socket(socket.AF_UNIX)
    server.connect(address)
    return server
