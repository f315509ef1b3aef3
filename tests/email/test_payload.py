"""What is refused when a mail is enqueued, and what becomes of one that got past (CASES A32)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from jobqueue import Job
from jobqueue.bundled import email
from jobqueue.bundled.email.address import parse_mailbox
from jobqueue.bundled.email.mail import Email
from jobqueue.errors import PayloadError
from tests.email.conftest import Mailroom, plain
from tests.support.smtp import MailServer

LINE_BREAKERS = ["\r\n", "\n", "\r", "\x00", "\x0b", "\x0c", "\x1b", "\x85", "\u2028", "\u2029"]
VALUE = "S3CRET"


def mail(**fields: Any) -> dict[str, Any]:
    return {"to": "ada@example.com", "subject": "Hello", "text": "Hi"} | fields


def bad_mails(breaker: str) -> dict[str, dict[str, Any]]:
    """A mail for each place where a line break could be smuggled in, by the name that the error must give."""
    evil = f"{VALUE}{breaker}Bcc: eve@example.com"
    return {
        "subject": mail(subject=evil),
        "to": mail(to=f'"{evil}" <ada@example.com>'),
        "cc": mail(cc=["bob@example.com", f"{VALUE}@example.com{breaker}"]),
        "bcc": mail(bcc=f"{breaker}{VALUE}@example.com"),
        "reply_to": mail(reply_to=f"{evil} <ada@example.com>"),
        "sender": mail(sender=f"{evil} <ada@example.com>"),
        "X-Note": mail(headers={"X-Note": evil}),
        "header name": mail(headers={f"X-Note{breaker}Bcc": VALUE}),
        "attachments[0].filename": mail(attachments=[{"filename": evil, "text": "x"}]),
        "attachments[0].content_type": mail(
            attachments=[{"filename": "a", "text": "x", "content_type": f"text/{evil}"}]
        ),
    }


@pytest.mark.parametrize("breaker", LINE_BREAKERS, ids=ascii)
@pytest.mark.parametrize("place", bad_mails(""))
def test_a_line_break_is_refused_at_enqueue_with_its_place_but_not_its_value(
    engine: Engine, tenant_id: UUID, breaker: str, place: str
) -> None:
    with Session(engine) as session, pytest.raises(PayloadError) as refusal:
        email.email_send.enqueue(session, bad_mails(breaker)[place], tenant_id=tenant_id)
    assert place in str(refusal.value)
    assert VALUE not in str(refusal.value)
    assert str(refusal.value).isprintable()


def test_a_subject_that_ends_in_one_newline_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"subject[^$]*U\+000A"):
        Email(**mail(subject="Hello\n"))


@pytest.mark.parametrize("name", ["", "X Note", "X:Note", "X-Nöte", "X\tNote"])
def test_what_is_no_header_name_is_refused(name: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        Email(**mail(headers={name: VALUE}))
    assert VALUE not in str(refusal.value)
    assert f"{name!a} is no header name" in str(refusal.value)


@pytest.mark.parametrize("case", [str.lower, str.upper, str.title])
@pytest.mark.parametrize(
    "name",
    [
        *["from", "sender", "to", "cc", "bcc", "reply-to", "subject", "date", "message-id", "received", "return-path"],
        *["mime-version", "content-type", "content-transfer-encoding", "content-x", "resent-to", "resent-message-id"],
    ],
)
def test_a_header_that_has_a_field_or_is_made_from_the_job_is_refused(name: str, case: Callable[[str], str]) -> None:
    name = case(name)
    with pytest.raises(ValidationError) as refusal:
        Email(**mail(headers={name: VALUE}))
    assert VALUE not in str(refusal.value)
    assert f"{name} cannot be set here" in str(refusal.value)


def test_a_header_named_twice_is_refused() -> None:
    with pytest.raises(ValidationError, match="X-NOTE is there twice"):
        Email(**mail(headers={"X-Note": "1", "X-NOTE": "2"}))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ada",
        "@example.com",
        "ada@",
        "ada@@example.com",
        "ada@b@example.com",
        "a b@example.com",
        "ada@exa mple.com",
        "ada@example.com, bob@example.com",
        "Team: ada@example.com;",
        "ada@example.com>",
        "<ada@example.com",
        "<>",
        "Lovelace, Ada <ada@example.com>",
        "Ada (x) <ada@example.com>",
        '"Ada <ada@example.com>',
        '"a"b" <a@b.example>',
        '"ada\\"@example.com',
        "<@x.example:ada@example.com>",
        "ada..l@example.com",
        ".ada@example.com",
        "ada@-example.com",
        "ada@example..com",
        "ada@[x y]",
        pytest.param("ada@straße.example", id="a domain that IDNA 2003 and 2008 read differently"),
        pytest.param("a" * 65 + "@example.com", id="long local part"),
        pytest.param("ada@" + "a." * 130 + "example", id="long address"),
        pytest.param("ada@" + "a" * 64 + ".example", id="long label"),
        pytest.param("(" * 5000 + "ada@example.com", id="deep comments"),
        pytest.param("x" * 501 + " <ada@example.com>", id="long name"),
    ],
)
def test_what_is_not_one_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError) as refusal:
        parse_mailbox(text)
    assert not text or text not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "name", "address"),
    [
        ("ada@example.com", "", "ada@example.com"),
        (" <ada@Example.COM> ", "", "ada@example.com"),
        ("Ada Q. Lovelace <ada@example.com>", "Ada Q. Lovelace", "ada@example.com"),
        ('"Lovelace, Ada" <ada@example.com>', "Lovelace, Ada", "ada@example.com"),
        (r'"A \"da\" \\ x" <ada@example.com>', r'A "da" \ x', "ada@example.com"),
        ("Müller & Söhne <info@müller.example>", "Müller & Söhne", "info@xn--mller-kva.example"),
        ("o'neil+tag@example.com", "", "o'neil+tag@example.com"),
        ('"two words"@example.com', "", '"two words"@example.com'),
        ("root@localhost", "", "root@localhost"),
        ("ada@[192.0.2.1]", "", "ada@[192.0.2.1]"),
        ("jürgen@example.com", "", "jürgen@example.com"),
    ],
)
def test_one_address_is_understood(text: str, name: str, address: str) -> None:
    mailbox = parse_mailbox(text)
    assert (mailbox.name, mailbox.address) == (name, address)


@pytest.mark.parametrize(
    "fields",
    [
        {"to": []},
        {"text": None},
        {"colour": "red"},
        {"attachments": [{"filename": "a"}]},
        {"attachments": [{"filename": "a", "text": "x", "content_base64": "eA=="}]},
        {"attachments": [{"filename": "a", "content_base64": "not base64!"}]},
        {"attachments": [{"filename": " ", "text": "x"}]},
        {"attachments": [{"filename": "a", "text": "x", "content_type": "message/rfc822"}]},
        {"attachments": [{"filename": "a", "text": "x", "content_type": "pdf"}]},
    ],
)
def test_an_incomplete_or_contradictory_mail_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Email(**mail(**fields))


def test_one_recipient_may_stand_alone_or_in_a_list() -> None:
    assert Email(**mail(to="ada@example.com")).to == Email(**mail(to=["ada@example.com"])).to == ["ada@example.com"]


def test_bad_mails_that_got_past_are_dead_letters_and_block_nothing(mailroom: Mailroom, server: MailServer) -> None:
    """Written as rows, past the check at enqueue; ten good mails around each."""
    good: list[UUID] = []
    bad: dict[UUID, str] = {}
    for place, payload in bad_mails("\r\n").items():
        good += [mailroom.post() for _ in range(5)]
        with Session(mailroom.engine) as session, session.begin():
            job = Job(tenant_id=mailroom.tenant_id, job_kind="email_send", payload=payload)
            session.add(job)
            session.flush()
            bad[job.id] = place
        good += [mailroom.post() for _ in range(5)]
    mailroom.work(plain(server))

    assert {mailroom.job(job_id).status for job_id in good} == {"done"}
    assert [mail.recipients for mail in server.mails] == [["ada@example.com"]] * len(good)
    for job_id, place in bad.items():
        job = mailroom.job(job_id)
        assert (job.status, job.attempts) == ("dlq", 1)
        assert place in str(job.last_error)
        assert VALUE not in str(job.last_error)
