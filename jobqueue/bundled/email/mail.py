"""The payload of ``email_send``: one mail, checked when it is enqueued and again when it is sent."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from jobqueue.bundled.email.address import Mailbox, check_line, parse_mailbox

# RFC 5322 section 3.6.8: printable ASCII except the colon
_HEADER_NAME: Final = re.compile(r"[!-9;-~]{1,76}")

# RFC 2045 section 5.1
_TOKEN: Final = r"[A-Za-z0-9!#$%&'*+\-.^_`{|}~]+"
_CONTENT_TYPE: Final = re.compile(
    rf"(?P<main>{_TOKEN})/(?P<sub>{_TOKEN})(?P<parameters>([ \t]*;[ \t]*{_TOKEN}=({_TOKEN}|\"[ !#-\[\]-~]*\"))*)"
)

# Fields of their own, made from the job, or left to mail servers
_OWN_HEADERS: Final = frozenset(
    ["from", "sender", "to", "cc", "bcc", "reply-to", "subject", "date", "message-id", "received", "return-path"]
)
_OWN_PREFIXES: Final = ("content-", "mime-", "resent-")


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _mailboxes(value: str | list[str]) -> list[str]:
    """One address or several, as the list that is stored."""
    addresses = _listed(value)
    for index, address in enumerate(addresses):
        try:
            parse_mailbox(address)
        except ValueError as error:
            where = "" if len(addresses) == 1 else f"address {index + 1} "
            raise ValueError(f"{where}{error}") from None
    return addresses


def _mailbox(value: str) -> str:
    parse_mailbox(value)
    return value


def _headers(value: dict[str, str]) -> dict[str, str]:
    seen: set[str] = set()
    for name, text in value.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"{name[:40]!a} is no header name: printable ASCII without space and colon")
        lower = name.lower()
        if lower in _OWN_HEADERS or lower.startswith(_OWN_PREFIXES):
            raise ValueError(f"{name} cannot be set here: it has a field of its own, or is made from the job")
        if lower in seen:
            raise ValueError(f"{name} is there twice, in different case of letters")
        seen.add(lower)
        try:
            check_line(text)
        except ValueError as error:
            raise ValueError(f"the value of {name} {error}") from None
    return value


def _content_type(value: str) -> str:
    match = _CONTENT_TYPE.fullmatch(value)
    if match is None:
        raise ValueError("is no content type such as application/pdf")
    if match["main"].lower() in {"multipart", "message"}:
        raise ValueError("cannot be multipart/* or message/*; attach such content as application/octet-stream")
    return value


def _base64(value: str) -> str:
    try:
        _decoded(value)
    except (binascii.Error, ValueError):
        raise ValueError("is not base64") from None
    return value


def _decoded(value: str) -> bytes:
    return base64.b64decode("".join(value.split()), validate=True)


Line = Annotated[str, AfterValidator(check_line)]
Address = Annotated[str, AfterValidator(_mailbox)]
Addresses = Annotated[str | list[str], AfterValidator(_mailboxes)]


class Attachment(BaseModel):
    """A file that goes along: its content either as base64 or as text, which is sent in UTF-8.

    The payload holds it whole, in the database; link to large files rather than attach them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    filename: Annotated[Line, Field(max_length=255, pattern=r"\S")]
    content_base64: Annotated[str, AfterValidator(_base64)] | None = None
    text: str | None = None
    content_type: Annotated[str, AfterValidator(_content_type)] | None = None
    """By default ``text/plain`` for text, else ``application/octet-stream``."""

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if (self.content_base64 is None) == (self.text is None):
            raise ValueError("an attachment takes one of content_base64 and text")
        return self

    @property
    def data(self) -> bytes:
        return self.text.encode() if self.text is not None else _decoded(self.content_base64 or "")

    @property
    def media_type(self) -> tuple[str, str, dict[str, str]]:
        """Main type, subtype and parameters."""
        match = _CONTENT_TYPE.fullmatch(self.content_type or self._default_type)
        assert match is not None, "checked by the validator"
        pairs = re.findall(rf'({_TOKEN})=({_TOKEN}|"[^"]*")', match["parameters"])
        parameters = {name.lower(): value.strip('"') for name, value in pairs}
        if self.text is not None:
            parameters["charset"] = "utf-8"
        return match["main"], match["sub"], parameters

    @property
    def _default_type(self) -> str:
        return "text/plain" if self.text is not None else "application/octet-stream"


class Email(BaseModel):
    """One mail. Whoever is in ``bcc`` is in the envelope only.

    Addresses are ``ada@example.com`` or ``Ada Lovelace <ada@example.com>``. Without ``sender`` the setting
    ``JOBQUEUE_SMTP_SENDER`` decides, when the mail is sent.

    ``at_most_once``: should it remain unknown whether the server took the mail, because its answer was lost or
    the worker died, the job goes to ``dlq`` as "outcome unknown". Otherwise the mail is sent again, with the same
    Message-ID: a repeat that receivers can recognise, rather than a loss.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    to: Addresses = []
    cc: Addresses = []
    bcc: Addresses = []
    subject: Line
    text: str | None = None
    html: str | None = None
    reply_to: Addresses = []
    sender: Address | None = None
    headers: Annotated[dict[str, str], AfterValidator(_headers)] = {}
    attachments: list[Attachment] = []
    at_most_once: bool = False

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        if not (self.to or self.cc or self.bcc):
            raise ValueError("a mail needs at least one recipient in to, cc or bcc")
        if self.text is None and self.html is None:
            raise ValueError("a mail needs text or html, or both")
        return self

    def mailboxes(self, field: str) -> list[Mailbox]:
        """The addresses of ``to``, ``cc``, ``bcc`` or ``reply_to``."""
        return [parse_mailbox(address) for address in _listed(getattr(self, field))]

    def envelope(self) -> list[Mailbox]:
        """Every recipient once, in the order to, cc, bcc."""
        everyone = (mailbox for field in ("to", "cc", "bcc") for mailbox in self.mailboxes(field))
        return list({mailbox.address: mailbox for mailbox in everyone}.values())
