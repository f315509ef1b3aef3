"""The bytes of a mail: the same for the same job, and readable by every receiver."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from email import message_from_bytes
from email.header import decode_header, make_header
from email.message import EmailMessage
from email.policy import default as modern
from email.utils import getaddresses
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from jobqueue.bundled.email.address import parse_mailbox
from jobqueue.bundled.email.mail import Email
from jobqueue.bundled.email.message import compose

JOB = UUID("01890000-0000-7000-8000-000000000001")
CREATED = datetime(2026, 3, 1, 12, tzinfo=UTC)
SENDER = parse_mailbox("Shop <shop@sender.example>")

line_texts = st.text(st.characters(exclude_categories=("Cc", "Zl", "Zp", "Cs")), max_size=400)


def composed(*, created_at: datetime = CREATED, **fields: Any) -> bytes:
    email = Email(**{"to": "ada@example.com", "subject": "Hello", "text": "Hi"} | fields)
    return compose(email, SENDER, job_id=JOB, created_at=created_at).data


def parsed(data: bytes) -> EmailMessage:
    message = message_from_bytes(data, policy=modern)
    assert isinstance(message, EmailMessage)
    return message


def unfolded(data: bytes, name: str) -> str:
    """A header field as RFC 5322 section 2.2.3 unfolds it, before encoded words are decoded."""
    return str(message_from_bytes(data)[name]).replace("\r\n", "")


def decoded(text: str) -> str:
    return str(make_header(decode_header(text))) if "=?" in text else text


def test_the_same_job_gives_the_same_bytes() -> None:
    fields: dict[str, Any] = {"html": "<p>ü", "attachments": [{"filename": "a.bin", "content_base64": "AAEC"}]}
    elsewhere = CREATED.astimezone(timezone(timedelta(hours=9)))
    assert composed(**fields) == composed(created_at=elsewhere, **fields)


def test_the_parts_are_nested_as_mail_programs_expect() -> None:
    data = composed(html="<p>Hi", attachments=[{"filename": "a.txt", "text": "x"}, {"filename": "b.txt", "text": "y"}])
    assert [part.get_content_type() for part in parsed(data).walk()] == [
        "multipart/mixed",
        "multipart/alternative",
        "text/plain",
        "text/html",
        "text/plain",
        "text/plain",
    ]


def test_html_alone_is_no_multipart() -> None:
    assert parsed(composed(text=None, html="<p>Hi")).get_content_type() == "text/html"


def test_a_text_that_holds_the_boundary_stays_in_one_piece() -> None:
    text = f"--=_{JOB.hex}_0\n--=_{JOB.hex}_0--\n"
    body = parsed(composed(text=text, html=text)).get_body(("plain",))
    assert body is not None
    assert body.get_content().replace("\r\n", "\n") == text


def test_a_long_subject_is_folded_once() -> None:
    subject = "word " * 60 + "end"
    data = composed(subject=subject)
    assert unfolded(data, "Subject") == subject
    assert all(len(line) <= 78 for line in data.split(b"\r\n"))


def test_a_long_unbroken_value_is_not_encoded() -> None:
    """Receivers do not decode the URL of List-Unsubscribe, or an id in References."""
    url = "<https://sender.example/" + "u" * 500 + ">"
    assert f"List-Unsubscribe: {url}\r\n".encode() in composed(headers={"List-Unsubscribe": url})


def test_what_looks_encoded_is_not_taken_for_encoded() -> None:
    subject = "=?utf-8?q?x=0D=0ABcc:_eve@example.com?="
    data = composed(subject=subject)
    assert decoded(unfolded(data, "Subject")) == subject
    assert "Bcc" not in parsed(data)


@given(subject=line_texts, value=line_texts)
def test_any_line_of_text_survives_as_subject_and_as_header(subject: str, value: str) -> None:
    data = composed(subject=subject, headers={"X-Note": value})
    assert decoded(unfolded(data, "Subject")) == subject
    assert decoded(unfolded(data, "X-Note")) == value
    head, _, _ = data.partition(b"\r\n\r\n")
    assert [line.split(b":")[0] for line in head.split(b"\r\n") if not line.startswith(b" ")] == [
        b"Date",
        b"From",
        b"To",
        b"Subject",
        b"Message-ID",
        b"X-Note",
        b"Content-Type",
        b"Content-Transfer-Encoding",
        b"MIME-Version",
    ]
    assert all(len(line) <= 998 for line in data.split(b"\r\n"))


@given(names=st.lists(line_texts.map(lambda text: text[:60]), min_size=1, max_size=6))
def test_any_display_name_survives_and_never_changes_the_addresses(names: list[str]) -> None:
    quoted = [name.replace("\\", "\\\\").replace('"', '\\"') for name in names]
    data = composed(to=[f'"{name}" <u{number}@example.com>' for number, name in enumerate(quoted)])
    pairs = getaddresses([unfolded(data, "To")])
    assert [address for _, address in pairs] == [f"u{number}@example.com" for number in range(len(names))]
    assert [decoded(name).split() for name, _ in pairs] == [name.split() for name in names]


@given(filename=line_texts.map(lambda text: text.strip()[:255].strip()).filter(bool))
def test_any_file_name_survives(filename: str) -> None:
    (attachment,) = parsed(composed(attachments=[{"filename": filename, "text": "x"}])).iter_attachments()
    assert attachment.get_filename() == filename


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=500))
def test_any_body_survives_and_needs_nothing_of_the_server(text: str) -> None:
    data = composed(text=text, html=text)
    for part in parsed(data).walk():
        if not part.is_multipart():
            lines = part.get_content().encode().splitlines()
            assert lines == (text.encode().splitlines() or [b""])
    # 7-bit, in short lines that end in CRLF
    assert data.isascii()
    assert all(len(line) <= 78 for line in data.split(b"\r\n"))
    assert data.count(b"\r") == data.count(b"\n") == data.count(b"\r\n")


def test_content_types_keep_their_parameters() -> None:
    invitation = {"filename": "i.ics", "text": "BEGIN:VCALENDAR", "content_type": 'text/calendar; method="REQUEST"'}
    (attachment,) = parsed(composed(attachments=[invitation])).iter_attachments()
    assert attachment["Content-Type"].params == {"method": "REQUEST", "charset": "utf-8"}
