"""What must not be in logs and errors: passwords, and the mail itself (CASES A37)."""

from __future__ import annotations

import base64
import logging

import pytest

from jobqueue.bundled.email.server import Security, SmtpServer
from jobqueue.errors import SettingsError
from tests.email.conftest import Mailroom
from tests.support.smtp import CLOSE, SILENT, ScriptedServer, Step

PASSWORD = "S3CRET-PASSWORD"
SECRET_MAIL = {
    "subject": "S3CRET-SUBJECT",
    "text": "S3CRET-TEXT",
    "html": "S3CRET-HTML",
    "headers": {"X-Token": "S3CRET-HEADER"},
    "attachments": [{"filename": "S3CRET-NAME.txt", "text": "S3CRET-FILE"}],
}
LEAKS = [
    "S3CRET",
    base64.b64encode(PASSWORD.encode()).decode(),
    base64.b64encode(b"\0user\0" + PASSWORD.encode()).decode(),
]


@pytest.mark.parametrize(
    ("stage", "steps"),
    [
        ("CONNECT", [CLOSE]),
        ("EHLO", [CLOSE]),
        ("EHLO", ["250 no login here"]),
        ("AUTH", [f"535 5.7.8 wrong password {PASSWORD} for user"]),
        ("AUTH", [f"535 5.7.8 cannot do {LEAKS[1]} {LEAKS[2]}"]),
        ("AUTH", ["334 not base64 at all"]),
        ("AUTH", [CLOSE]),
        ("MAIL", ["550 5.1.8 no"]),
        ("RCPT", ["450 4.2.1 later"]),
        ("RCPT", ["550 5.1.1 no"]),
        ("DATA", [CLOSE]),
        ("END", ["554 5.7.1 spam"]),
        ("END", [CLOSE]),
        ("END", [SILENT]),
        ("END", ["250 OK"]),
    ],
)
def test_no_failure_tells_a_password_or_the_mail(
    mailroom: Mailroom, scripted: ScriptedServer, caplog: pytest.LogCaptureFixture, stage: str, steps: list[Step]
) -> None:
    scripted.script["EHLO"] = ["250-test.example\r\n250 AUTH PLAIN LOGIN"]
    scripted.script[stage] = steps
    job_id = mailroom.post(**SECRET_MAIL)
    with caplog.at_level(logging.DEBUG):
        mailroom.work(f"smtp+plain://user:{PASSWORD}@127.0.0.1:{scripted.port}", answer_seconds=1)
    told = [str(mailroom.job(job_id).last_error), *(str(row.reply) for row in mailroom.rows(job_id))]
    told += [record.getMessage() + str(record.exc_text) + str(record.__dict__) for record in caplog.records]
    assert [(leak, text) for leak in LEAKS for text in told if leak in text] == []


def test_nothing_is_printed(mailroom: Mailroom, scripted: ScriptedServer, capfd: pytest.CaptureFixture[str]) -> None:
    mailroom.post(**SECRET_MAIL)
    mailroom.work(f"smtp+plain://127.0.0.1:{scripted.port}")
    printed = capfd.readouterr()
    assert "S3CRET" not in printed.out + printed.err


@pytest.mark.parametrize(
    "url",
    [
        "http://user:S3CRET@mail.example",
        "smtp://user:S3CRET/x@mail.example",
        "smtp://user:S3CRET?x@mail.example",
        "smtp://user:S3CRET#x@mail.example",
        "smtp://user:S3CRET@mail.example/path",
        "smtp://user:S3CRET@mail.example:S3CRET",
        "smtp://user:S3CRET@mail.example:99999",
        "smtp://user:S3CRET@[mail.example",
        "smtp://user:S3CRET@",
        "smtp://user:S3CRET@mail..example",
        "smtp://user:S3CRET@mail.example?S3CRET=1",
        "smtp://user:S3CRET@mail.example?local_hostname=S3CRET%0d%0a",
        "smtp://user:S3CRET%C3%A4@mail.example",
        "smtp://user:x@mail.example?ca_file=/S3CRET/ca.pem",
        "S3CRET",
        "",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        SmtpServer.from_url(url)
    assert "JOBQUEUE_SMTP_URL" in str(refusal.value)
    assert "S3CRET" not in str(refusal.value)
    assert refusal.value.__suppress_context__ or refusal.value.__context__ is None


@pytest.mark.parametrize(
    ("url", "security", "port"),
    [
        ("smtp://mail.example", Security.STARTTLS, 587),
        ("smtps://mail.example", Security.TLS, 465),
        ("smtp+plain://mail.example", Security.NONE, 25),
        ("smtp+plain://mail.example:2525/", Security.NONE, 2525),
    ],
)
def test_the_scheme_decides_on_tls_and_port(url: str, security: Security, port: int) -> None:
    server = SmtpServer.from_url(url)
    assert (server.host, server.security, server.port, server.user) == ("mail.example", security, port, None)
    assert (server.tls is None) == (security is Security.NONE)


def test_user_and_password_are_percent_decoded_and_not_shown() -> None:
    server = SmtpServer.from_url(
        "smtp+plain://ada%40example.com:S3CRET%2F%3A%25@mail.example?local_hostname=me.example"
    )
    assert (server.user, server.password, server.ehlo_name) == ("ada@example.com", "S3CRET/:%", "me.example")
    assert "S3CRET" not in repr(server) + str(server)
