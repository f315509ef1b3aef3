"""A mail server on this machine. It takes a moment over each mail, and does not take every mail at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from typing import Any, Final

from aiosmtpd.controller import Controller

HOST: Final = "127.0.0.1"

TRY_LATER: Final = "450 4.2.0 Greylisted, please try again later"
CLOSED: Final = "550 5.2.1 This mailbox is closed, ask its postmaster"

_PAUSE: Final = (0.03, 0.15)
"""Seconds, twice for each mail: before it is taken, and between taking it and saying so."""


@dataclass(frozen=True, slots=True)
class Mail:
    """A mail as it arrived in a mailbox."""

    recipient: str
    data: bytes

    @property
    def message_id(self) -> str:
        return str(BytesHeaderParser().parsebytes(self.data)["Message-ID"]).strip()


class MailServer:
    """Puts off the recipients ``greylisted`` at their first mail, and refuses those of ``closed`` mailboxes."""

    def __init__(self, *, greylisted: Collection[str], closed: Collection[str]) -> None:
        self._greylisted = frozenset(greylisted)
        self._closed = set(closed)
        self._put_off: set[str] = set()
        self._mails: list[Mail] = []
        self._controller = _Controller(self, hostname=HOST, port=0)

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

    @property
    def mails(self) -> list[Mail]:
        """All mails in the mailboxes, in the order of their arrival."""
        return self._mails.copy()

    @property
    def put_off(self) -> frozenset[str]:
        """The recipients who were put off once."""
        return frozenset(self._put_off)

    def open_mailboxes(self) -> None:
        """The postmaster opens what was closed."""
        self._closed.clear()

    # aiosmtpd calls these in its thread. When a client goes away, it cancels the one that runs

    async def handle_RCPT(  # noqa: N802
        self, server: object, session: object, envelope: Any, address: str, options: list[str]
    ) -> str:
        await _pause()
        if address in self._closed:
            return CLOSED
        if address in self._greylisted and address not in self._put_off:
            self._put_off.add(address)
            return TRY_LATER
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 OK"

    async def handle_DATA(self, server: object, session: object, envelope: Any) -> str:  # noqa: N802
        self._mails.extend(Mail(recipient, envelope.content) for recipient in envelope.rcpt_tos)
        await _pause()
        return "250 2.0.0 In the mailbox"


async def _pause() -> None:
    await asyncio.sleep(random.uniform(*_PAUSE))


class _Controller(Controller):
    """Takes any free port."""

    @property
    def bound_port(self) -> int:
        assert isinstance(self.server, asyncio.Server), "only while it is running"
        port: int = self.server.sockets[0].getsockname()[1]
        return port

    def _trigger_server(self) -> None:
        # aiosmtpd connects to the port that it was given, to see whether it listens
        self.port = self.bound_port
        super()._trigger_server()  # type: ignore[no-untyped-call]
