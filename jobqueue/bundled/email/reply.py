"""What a mail server's reply means for a mail: the first digit decides (RFC 5321 section 4.2.1), nearly always."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from jobqueue.failure import clean

UNKNOWN: Final = "outcome unknown"
"""How the text of a verdict begins when the mail may or may not have been taken."""

_ENHANCED: Final = re.compile(r"([245]\.\d{1,3}\.\d{1,3})(?:\s+|$)")
_MAX_TEXT: Final = 1000  # bytes of a reply that are kept

# The server wants another login, or none from us (RFC 4954 section 6). 454 also says that TLS is out of order.
_LOGIN_TROUBLE: Final = frozenset({454, 530, 534, 535, 538})


class Stage(StrEnum):
    """Where in the exchange a reply was given, or failed to come."""

    CONNECT = "connecting"
    EHLO = "EHLO"
    STARTTLS = "STARTTLS"
    AUTH = "AUTH"
    MAIL = "MAIL FROM"
    RCPT = "RCPT TO"
    DATA = "DATA"
    END = "the end of the mail"


_SECURITY: Final = frozenset({Stage.STARTTLS, Stage.AUTH})
_BEFORE_THE_MAIL: Final = _SECURITY | {Stage.CONNECT, Stage.EHLO}


class Delivery(StrEnum):
    """What became of a recipient; the words of ``mdm.email_log``."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    DEFERRED = "deferred"


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply: its code and its words, which may have several lines."""

    code: int
    text: str

    @classmethod
    def of(cls, code: int, text: bytes) -> Reply:
        """From the bytes of the wire, without the code that repeats in each line."""
        lines = [_printable(line) for line in text.decode("utf-8", "replace").split("\n")]
        matches = [_ENHANCED.match(line) for line in lines]
        enhanced = next((match[1] for match in matches if match), "")
        words = [line[match.end() if match else 0 :].strip() for line, match in zip(lines, matches, strict=True)]
        return cls(code, clean(f"{enhanced} {' / '.join(filter(None, words))}".strip(), _MAX_TEXT))

    @property
    def enhanced(self) -> str | None:
        """The enhanced status code (RFC 3463), such as 5.1.1."""
        match = _ENHANCED.match(self.text)
        return match[1] if match else None

    @property
    def positive(self) -> bool:
        return 200 <= self.code < 300

    @property
    def too_many_recipients(self) -> bool:
        """This recipient comes with the next transaction (RFC 5321 section 4.5.3.1.10)."""
        return self.code in (452, 552) and self.enhanced in (None, "4.5.3", "5.5.3")

    def __str__(self) -> str:
        return f"{self.code} {self.text}".strip()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one recipient in one exchange, and why."""

    delivery: Delivery
    text: str
    code: int | None = None
    alarm: bool = False
    """The mail is not at fault: somebody should look at the server, or at our settings."""
    next_transaction: bool = False

    @property
    def unknown(self) -> bool:
        """Whether the server took the mail is not known."""
        return self.text.startswith(UNKNOWN)


def judge(stage: Stage, reply: Reply) -> Verdict:
    """What ``reply`` means for the recipients that it is about."""
    refused = 500 <= reply.code < 600
    if reply.positive:
        return Verdict(Delivery.ACCEPTED, str(reply), reply.code)
    if stage in _BEFORE_THE_MAIL or reply.code in _LOGIN_TROUBLE:
        return Verdict(Delivery.DEFERRED, f"{reply} (at {stage})", reply.code, alarm=refused or stage in _SECURITY)
    if stage is Stage.RCPT and reply.too_many_recipients:
        return Verdict(Delivery.DEFERRED, str(reply), reply.code, next_transaction=True)
    # RFC 5321 section 4.5.3.1.10: to a recipient, 552 is to be taken as 452
    if refused and not (stage is Stage.RCPT and reply.code == 552):
        return Verdict(Delivery.REFUSED, str(reply), reply.code)
    return Verdict(Delivery.DEFERRED, str(reply), reply.code)


def trouble(stage: Stage, reason: str, *, alarm: bool = False) -> Verdict:
    """No usable reply came: the connection, TLS or our patience ended."""
    return Verdict(Delivery.DEFERRED, clean(f"{reason} (at {stage})", _MAX_TEXT), alarm=alarm)


def unknown(reason: str) -> Verdict:
    """The mail was handed over to its last byte, and the answer did not come (RFC 1047)."""
    return Verdict(Delivery.DEFERRED, clean(f"{UNKNOWN}: {reason}", _MAX_TEXT))


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text.strip())
