"""A mail from the job to the server: what arrives, over which connection, and what is logged."""

from __future__ import annotations

from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from jobqueue.bundled import email
from jobqueue.bundled.email.mailer import mailer_of_environment
from jobqueue.errors import SettingsError
from jobqueue.settings import load_settings
from jobqueue.worker import Worker
from tests.email.conftest import Mailroom, plain
from tests.support.smtp import Authority, MailServer


def test_a_mail_arrives_whole(mailroom: Mailroom, server: MailServer) -> None:
    job_id = mailroom.post(
        "Ada Lovelace <ada@example.com>",
        cc=["bob@example.com"],
        bcc="eve@example.com",
        subject="Grüße",
        text=".\n..dots\nFrom here\n",
        html="<p>Hi",
        reply_to="help@sender.example",
        headers={"List-Unsubscribe": "<https://sender.example/" + "u" * 200 + ">"},
        attachments=[
            {"filename": "Rechnung März.pdf", "content_base64": "JVBERi0=", "content_type": "application/pdf"}
        ],
    )
    mailroom.work(plain(server))

    (mail,) = server.mails
    message = mail.message
    assert (mail.sender, mail.recipients) == (
        "shop@sender.example",
        ["ada@example.com", "bob@example.com", "eve@example.com"],
    )
    assert message["From"] == "Shop <shop@sender.example>"
    assert message["To"] == "Ada Lovelace <ada@example.com>"
    assert message["Cc"] == "bob@example.com"
    assert message["Reply-To"] == "help@sender.example"
    assert message["Subject"] == "Grüße"
    assert message["List-Unsubscribe"] == "<https://sender.example/" + "u" * 200 + ">"
    assert b"eve@" not in mail.data
    text, html = message.get_body(("plain",)), message.get_body(("html",))
    assert text is not None
    assert html is not None
    assert text.get_content().replace("\r\n", "\n") == ".\n..dots\nFrom here\n"
    assert html.get_content().strip() == "<p>Hi"
    (attachment,) = message.iter_attachments()
    assert (attachment.get_filename(), attachment.get_content_type(), attachment.get_content()) == (
        "Rechnung März.pdf",
        "application/pdf",
        b"%PDF-",
    )

    job = mailroom.job(job_id)
    assert job.status == "done"
    assert message["Message-ID"] == f"<{job_id}@sender.example>"
    assert parsedate_to_datetime(str(message["Date"])) == job.created_at.replace(microsecond=0)


def test_what_was_accepted_is_logged_together_with_done(mailroom: Mailroom, server: MailServer) -> None:
    job_id = mailroom.post("ada@example.com", bcc=["eve@example.com"])
    mailroom.work(plain(server))
    (row,) = mailroom.rows(job_id)
    assert (row.outcome, row.recipients, row.code) == ("accepted", ["ada@example.com", "eve@example.com"], 250)
    assert row.reply == "250 2.0.0 queued"
    assert (row.message_id, row.sender, row.tenant_id) == (
        f"<{job_id}@sender.example>",
        "shop@sender.example",
        mailroom.tenant_id,
    )


def test_a_recipient_named_twice_gets_one_mail(mailroom: Mailroom, server: MailServer) -> None:
    mailroom.post("Ada <ada@example.com>", cc="ada@EXAMPLE.com", bcc="ada@example.com")
    mailroom.work(plain(server))
    assert [mail.recipients for mail in server.mails] == [["ada@example.com"]]


def test_a_mail_of_many_megabytes_arrives(mailroom: Mailroom, server: MailServer) -> None:
    content = "0123456789abcdef" * 100_000
    mailroom.post(attachments=[{"filename": "big.txt", "text": content}])
    mailroom.work(plain(server))
    (attachment,) = server.mails[0].message.iter_attachments()
    assert attachment.get_content() == content


@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")  # aiosmtpd means STARTTLS
@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_tls_and_login(mailroom: Mailroom, authority: Authority, security: str) -> None:
    login = ("user@example.com", "pa:ss/w@rd?#%")
    options = {security: authority.context}
    with MailServer(login=login, **options).running() as server:  # type: ignore[arg-type]
        job_id = mailroom.post()
        scheme = "smtps" if security == "tls" else "smtp"
        mailroom.work(
            f"{scheme}://user%40example.com:pa%3Ass%2Fw%40rd%3F%23%25@127.0.0.1:{server.port}?ca_file={authority.ca_file}"
        )
        assert mailroom.job(job_id).last_error is None
        assert len(server.mails) == 1


def test_letters_beyond_ascii_in_a_local_part_need_smtputf8(mailroom: Mailroom) -> None:
    with MailServer(smtputf8=True).running() as server:
        mailroom.post("Jürgen <jürgen@bücher.example>")
        mailroom.work(plain(server))
        (mail,) = server.mails
        assert mail.recipients == ["jürgen@xn--bcher-kva.example"]
        assert "<jürgen@xn--bcher-kva.example>".encode() in mail.data


def test_without_smtputf8_such_a_mail_is_a_dead_letter(mailroom: Mailroom) -> None:
    with MailServer().running() as server:
        job_id = mailroom.post("jürgen@example.com")
        mailroom.work(plain(server))
        job = mailroom.job(job_id)
        assert (job.status, job.attempts) == ("dlq", 1)
        assert "does not offer SMTPUTF8" in str(job.last_error)
        assert server.mails == []


@pytest.fixture
def smtp_environment(
    database_url: str, server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pytest.MonkeyPatch]:
    """The environment of a worker that can send mails, for the test to spoil; no sender is set."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("JOBQUEUE_SMTP_URL", plain(server))
    monkeypatch.delenv("JOBQUEUE_SMTP_SENDER", raising=False)
    yield monkeypatch
    mailer_of_environment.cache_clear()


def drain_by_environment() -> None:
    Worker(email.handlers, load_settings(), drain=True).run()


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("JOBQUEUE_SMTP_URL", None, "JOBQUEUE_SMTP_URL is not set; set it to smtp://"),
        ("JOBQUEUE_SMTP_URL", "http://S3CRET@mail.example", "JOBQUEUE_SMTP_URL cannot be read"),
        ("JOBQUEUE_SMTP_SENDER", "S3CRET", "JOBQUEUE_SMTP_SENDER is no mail address"),
    ],
)
def test_a_worker_whose_environment_cannot_send_mails_does_not_start(
    mailroom: Mailroom, smtp_environment: pytest.MonkeyPatch, variable: str, value: str | None, told: str
) -> None:
    job_id = mailroom.post(sender="other@sender.example")
    if value is None:
        smtp_environment.delenv(variable)
    else:
        smtp_environment.setenv(variable, value)
    with pytest.raises(SettingsError, match=told) as refusal:
        drain_by_environment()
    assert "S3CRET" not in str(refusal.value)
    job = mailroom.job(job_id)
    assert (job.status, job.attempts, job.started_at) == ("pending", 0, None)


def test_each_start_of_a_worker_reads_the_environment_anew(
    mailroom: Mailroom, server: MailServer, smtp_environment: pytest.MonkeyPatch
) -> None:
    """A fault is not remembered once it is mended, and neither is what was right once."""
    job_id = mailroom.post(sender="other@sender.example")
    smtp_environment.delenv("JOBQUEUE_SMTP_URL")
    with pytest.raises(SettingsError):
        drain_by_environment()
    smtp_environment.setenv("JOBQUEUE_SMTP_URL", plain(server))
    drain_by_environment()
    assert mailroom.job(job_id).status == "done"
    assert [mail.sender for mail in server.mails] == ["other@sender.example"]
    smtp_environment.delenv("JOBQUEUE_SMTP_URL")
    with pytest.raises(SettingsError):
        drain_by_environment()


def test_settings_given_in_the_code_are_checked_without_the_environment(
    mailroom: Mailroom, server: MailServer, smtp_environment: pytest.MonkeyPatch
) -> None:
    smtp_environment.delenv("JOBQUEUE_SMTP_URL")
    with pytest.raises(SettingsError, match="JOBQUEUE_SMTP_URL is not set"):
        email.handlers_for(load_settings())
    mailroom.post()
    mailroom.work(plain(server))
    assert len(server.mails) == 1


def test_a_missing_sender_is_told_and_tried_again(
    mailroom: Mailroom, server: MailServer, caplog: pytest.LogCaptureFixture
) -> None:
    job_id = mailroom.post()
    mailroom.work(plain(server), smtp_sender=None)
    assert mailroom.job(job_id).status == "pending"
    assert "JOBQUEUE_SMTP_SENDER is not set" in caplog.text


def test_the_log_outlives_the_job(mailroom: Mailroom, server: MailServer) -> None:
    job_id = mailroom.post()
    mailroom.work(plain(server))
    mailroom.purge(job_id)
    (row,) = mailroom.rows(None)
    assert (row.job_id, row.message_id) == (None, f"<{job_id}@sender.example>")


def test_a_certificate_file_that_is_none_stops_the_start(mailroom: Mailroom, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ca_file cannot be read"):
        mailroom.work(f"smtps://localhost?ca_file={tmp_path}/missing.pem")
