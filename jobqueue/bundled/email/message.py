"""The mail as bytes. Everything that varies comes from the job, so that a repeat is the same mail, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP, EmailPolicy
from email.utils import format_datetime
from typing import Any, Final
from uuid import UUID

from jobqueue.bundled.email.address import Mailbox
from jobqueue.bundled.email.headers import encode_mailboxes, encode_text, fold
from jobqueue.bundled.email.mail import Email

_LINE: Final = 76  # characters of an encoded line, RFC 2045 section 6.7


@dataclass(frozen=True, slots=True)
class Message:
    """A mail ready for the wire. ``recipients`` are the envelope's, ``data`` ends its lines with CRLF."""

    message_id: str
    sender: str
    recipients: list[str]
    data: bytes
    needs_smtputf8: bool


def compose(email: Email, sender: Mailbox, *, job_id: UUID, created_at: datetime) -> Message:
    """Build the mail of a job.

    ``Message-ID`` (RFC 5322 section 3.6.4) and ``Date`` are the job's, and so are the MIME boundaries. Bodies
    travel as quoted-printable or base64, so that the bytes do not depend on what the server can do.
    """
    recipients = email.envelope()
    message_id = f"<{job_id}@{sender.domain}>"
    message = EmailMessage(policy=_WIRE)
    for name, value in _headers(email, sender, message_id, created_at):
        message[name] = value
    _add_bodies(message, email)
    for attachment in email.attachments:
        main, sub, parameters = attachment.media_type
        message.add_attachment(
            attachment.data, maintype=main, subtype=sub, params=parameters, filename=attachment.filename
        )
    _set_boundaries(message, job_id)
    everyone = [sender, *recipients, *email.mailboxes("reply_to")]
    return Message(
        message_id=message_id,
        sender=sender.address,
        recipients=[mailbox.address for mailbox in recipients],
        data=message.as_bytes(),
        needs_smtputf8=any(mailbox.needs_smtputf8 for mailbox in everyone),
    )


def _headers(email: Email, sender: Mailbox, message_id: str, created_at: datetime) -> Iterable[tuple[str, str]]:
    """The header fields in the order in which they are sent, already encoded and folded."""
    yield "Date", format_datetime(created_at.astimezone(UTC))
    yield "From", encode_mailboxes("From", [sender])
    for name, field in (("To", "to"), ("Cc", "cc"), ("Reply-To", "reply_to")):
        mailboxes = email.mailboxes(field)
        if mailboxes:
            yield name, encode_mailboxes(name, mailboxes)
    yield "Subject", encode_text("Subject", email.subject)
    yield "Message-ID", fold("Message-ID", message_id)
    for name, value in email.headers.items():
        yield name, encode_text(name, value)


def _add_bodies(message: EmailMessage, email: Email) -> None:
    if email.text is not None:
        message.set_content(email.text, cte=_transfer_encoding(email.text))
        if email.html is not None:
            message.add_alternative(email.html, subtype="html", cte=_transfer_encoding(email.html))
    else:
        assert email.html is not None, "checked by Email"
        message.set_content(email.html, subtype="html", cte=_transfer_encoding(email.html))


def _transfer_encoding(text: str) -> str:
    """Readable where most is ASCII, compact where it is not."""
    foreign = sum(1 for character in text if character > "\x7f")
    return "base64" if foreign > len(text) / 4 else "quoted-printable"


def _set_boundaries(message: EmailMessage, job_id: UUID) -> None:
    """``=_`` occurs neither in quoted-printable nor in base64 (RFC 2045 section 6.7): no body can hold a boundary."""
    for number, part in enumerate(message.walk()):
        if part.is_multipart():
            part.set_boundary(f"=_{job_id.hex}_{number}")


class _WirePolicy(EmailPolicy):
    """The SMTP policy, except that header fields which arrive encoded and folded stay as they are.

    ``EmailMessage`` would read them (encoded words turn into what they stand for, line breaks included) and fold
    them again, by rules that differ between versions of Python. MIME fields are its own affair.
    """

    def header_store_parse(self, name: str, value: Any) -> tuple[str, Any]:
        return super().header_store_parse(name, value) if _is_mime(name) else (name, value)

    def fold_binary(self, name: str, value: Any) -> bytes:
        return super().fold_binary(name, value) if _is_mime(name) else f"{name}: {value}\r\n".encode()


def _is_mime(name: str) -> bool:
    return name.lower().startswith(("content-", "mime-"))


_WIRE: Final = _WirePolicy(linesep=SMTP.linesep, max_line_length=_LINE, cte_type="7bit", mangle_from_=False)
