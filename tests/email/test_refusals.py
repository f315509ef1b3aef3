"""What a server's answers do to the job (CASES A33): 4xx and trouble are tried again, 5xx about the mail are not."""

from __future__ import annotations

import logging
import time

import pytest

from tests.email.conftest import Mailroom, plain
from tests.support.smtp import (
    CLOSE,
    DRIP,
    FLOOD,
    INJECTED_START_TLS,
    RESET,
    SILENT,
    Authority,
    MailServer,
    ScriptedServer,
    Step,
    unused_port,
)

ADA = ["ada@example.com"]


def test_greylisted_mail_goes_out_at_the_next_attempt(mailroom: Mailroom, scripted: ScriptedServer) -> None:
    scripted.script["RCPT"] = ["450 4.7.1 Greylisted, come back later", "250 2.1.5 OK"]
    job_id = mailroom.post()
    mailroom.work(plain(scripted))
    job = mailroom.job(job_id)
    assert (job.status, job.attempts) == ("pending", 1)
    assert "deferred: ada@example.com: 450 4.7.1 Greylisted, come back later" in str(job.last_error)
    minutes = (job.available_at - job.started_at).total_seconds() / 60  # type: ignore[operator]
    assert 0.9 < minutes < 2.1

    mailroom.work(plain(scripted))
    assert mailroom.job(job_id).status == "done"
    assert len(scripted.mails) == 1
    assert mailroom.log(job_id) == [("deferred", ADA, 450), ("accepted", ADA, 250)]


@pytest.mark.parametrize(
    ("stage", "reply", "words"),
    [
        ("MAIL", "550 5.1.8 Sender domain has no MX", "550 5.1.8 Sender domain has no MX"),
        ("MAIL", "552 5.3.4 Message too big", "552 5.3.4 Message too big"),
        ("RCPT", "550 5.1.1 No such user", "550 5.1.1 No such user"),
        ("RCPT", "550-5.1.1 No such user\r\n550 5.1.1 Ask your admin", "550 5.1.1 No such user / Ask your admin"),
        ("RCPT", "553 mailbox name not allowed", "553 mailbox name not allowed"),
        ("DATA", "554 5.7.1 No thanks", "554 5.7.1 No thanks"),
        ("END", "554 5.7.1 Looks like spam", "554 5.7.1 Looks like spam"),
        ("END", "552 5.2.2 Mailbox full", "552 5.2.2 Mailbox full"),
    ],
)
def test_a_permanent_refusal_is_a_dead_letter_at_once(
    mailroom: Mailroom, scripted: ScriptedServer, stage: str, reply: str, words: str
) -> None:
    scripted.script[stage] = [reply]
    job_id = mailroom.post()
    mailroom.work(plain(scripted))
    job = mailroom.job(job_id)
    assert (job.status, job.attempts) == ("dlq", 1)
    assert job.last_error == f"not delivered: ada@example.com: {words}"
    assert mailroom.log(job_id) == [("refused", ADA, int(reply[:3]))]


@pytest.mark.parametrize(
    ("stage", "step", "code"),
    [
        ("CONNECT", "421 4.3.2 Too busy", 421),
        ("CONNECT", CLOSE, None),
        ("CONNECT", RESET, None),
        ("CONNECT", "hello, I am no mail server", None),
        ("EHLO", CLOSE, None),
        ("EHLO", "421 4.4.2 Timeout", 421),
        ("MAIL", "451 4.3.0 Local error", 451),
        ("MAIL", CLOSE, None),
        ("RCPT", "450 4.2.1 Greylisted", 450),
        ("RCPT", "421 4.3.2 Shutting down", 421),
        ("RCPT", "452 4.5.3 Too many recipients", 452),
        ("RCPT", "552 5.5.3 Too many recipients", 552),
        ("RCPT", "552 Too many recipients", 552),
        ("RCPT", "552 5.2.2 Mailbox full", 552),
        ("RCPT", CLOSE, None),
        ("DATA", "451 4.3.0 Try later", 451),
        ("DATA", CLOSE, None),
        ("DATA", "250 what?", None),
        ("END", "452 4.3.1 Disk full", 452),
        ("END", "421 4.3.2 Shutting down", 421),
    ],
)
def test_temporary_trouble_is_tried_again(
    mailroom: Mailroom, scripted: ScriptedServer, stage: str, step: Step, code: int | None
) -> None:
    scripted.script[stage] = [step]
    job_id = mailroom.post()
    mailroom.work(plain(scripted))
    job = mailroom.job(job_id)
    assert (job.status, job.attempts) == ("pending", 1)
    assert mailroom.log(job_id) == [("deferred", ADA, code)]
    if code is not None:
        assert str(step) in str(job.last_error)

    del scripted.script[stage]
    mailroom.work(plain(scripted))
    assert mailroom.job(job_id).status == "done"
    assert mailroom.log(job_id)[-1] == ("accepted", ADA, 250)


def test_a_server_that_is_not_there_is_tried_again(mailroom: Mailroom) -> None:
    job_id = mailroom.post()
    mailroom.work(f"smtp+plain://127.0.0.1:{unused_port()}")
    job = mailroom.job(job_id)
    assert job.status == "pending"
    assert "ConnectionRefusedError: Connection refused (at connecting)" in str(job.last_error)


@pytest.mark.parametrize("step", [SILENT, DRIP, FLOOD], ids=["silent", "drips", "never ends"])
@pytest.mark.parametrize("stage", ["CONNECT", "EHLO", "MAIL", "RCPT", "DATA", "END"])
def test_a_server_that_never_finishes_its_answer_is_left(
    mailroom: Mailroom, scripted: ScriptedServer, stage: str, step: Step
) -> None:
    scripted.script[stage] = [step]
    job_id = mailroom.post()
    begin = time.monotonic()
    mailroom.work(plain(scripted), answer_seconds=0.5)
    assert time.monotonic() - begin < 15
    job = mailroom.job(job_id)
    assert (job.status, job.attempts) == ("pending", 1)
    expected = "no SMTP reply" if step == FLOOD else "no answer within 0.5 s"
    assert expected in str(job.last_error)


@pytest.mark.parametrize("stage", ["STARTTLS", "AUTH"])
def test_a_server_silent_before_the_mail_is_left(mailroom: Mailroom, scripted: ScriptedServer, stage: str) -> None:
    scripted.script |= {"EHLO": ["250-test.example\r\n250-STARTTLS\r\n250 AUTH PLAIN"], stage: [SILENT]}
    scheme = "smtp" if stage == "STARTTLS" else "smtp+plain"
    job_id = mailroom.post()
    mailroom.work(f"{scheme}://user:secret@127.0.0.1:{scripted.port}", answer_seconds=0.5)
    job = mailroom.job(job_id)
    assert (job.status, job.attempts) == ("pending", 1)
    assert f"no answer within 0.5 s (at {stage})" in str(job.last_error)


def test_a_server_silent_during_the_tls_handshake_is_left(
    mailroom: Mailroom, scripted: ScriptedServer, authority: Authority
) -> None:
    scripted.script["CONNECT"] = [SILENT]
    job_id = mailroom.post()
    mailroom.work(f"smtps://127.0.0.1:{scripted.port}?ca_file={authority.ca_file}", answer_seconds=0.5)
    job = mailroom.job(job_id)
    assert (job.status, job.attempts) == ("pending", 1)
    assert "timed out (at connecting)" in str(job.last_error)


def test_the_exchange_ends_before_the_attempt_does(mailroom: Mailroom, scripted: ScriptedServer) -> None:
    scripted.script["RCPT"] = [SILENT]
    job_id = mailroom.post()
    mailroom.work(plain(scripted), answer_seconds=60, timeout=3)
    job = mailroom.job(job_id)
    assert "the attempt's time is used up (at RCPT TO)" in str(job.last_error)
    assert mailroom.log(job_id) == [("deferred", ADA, None)]


# --- The mail is not at fault: tried again, and somebody is told ------------------------------------------------


def trouble_is_told(mailroom: Mailroom, url: str, caplog: pytest.LogCaptureFixture, words: str) -> None:
    job_id = mailroom.post()
    with caplog.at_level(logging.DEBUG):
        mailroom.work(url)
    job = mailroom.job(job_id)
    assert (job.status, job.attempts) == ("pending", 1)
    assert words in str(job.last_error)
    (alarm,) = [record for record in caplog.records if "need attention" in record.getMessage()]
    assert alarm.levelno == logging.ERROR
    assert words in alarm.getMessage()
    assert [outcome for outcome, _, _ in mailroom.log(job_id)] == ["deferred"]


@pytest.mark.parametrize(
    ("stage", "reply"),
    [
        ("CONNECT", "554 5.3.2 No SMTP service here"),
        ("EHLO", "550 5.7.1 I do not like your name"),
        ("MAIL", "530 5.7.0 Authentication required"),
        ("RCPT", "530 5.7.0 Must issue a STARTTLS command first"),
    ],
)
def test_a_server_that_wants_us_set_up_differently(
    mailroom: Mailroom, scripted: ScriptedServer, caplog: pytest.LogCaptureFixture, stage: str, reply: str
) -> None:
    scripted.script[stage] = [reply]
    trouble_is_told(mailroom, plain(scripted), caplog, reply)


@pytest.mark.parametrize("reply", ["535 5.7.8 Bad credentials", "454 4.7.0 Try the login later", "534 5.7.9 Too weak"])
def test_a_refused_login(
    mailroom: Mailroom, scripted: ScriptedServer, caplog: pytest.LogCaptureFixture, reply: str
) -> None:
    scripted.script |= {"EHLO": ["250-test.example\r\n250 AUTH PLAIN LOGIN"], "AUTH": [reply]}
    trouble_is_told(mailroom, plain(scripted).replace("//", "//user:secret@"), caplog, f"{reply} (at AUTH)")


def test_a_login_that_the_server_does_not_offer(
    mailroom: Mailroom, scripted: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = plain(scripted).replace("//", "//user:secret@")
    trouble_is_told(mailroom, url, caplog, "the server does not offer a login that we know")


def test_starttls_is_required(mailroom: Mailroom, scripted: ScriptedServer, caplog: pytest.LogCaptureFixture) -> None:
    trouble_is_told(mailroom, f"smtp://127.0.0.1:{scripted.port}", caplog, "does not offer STARTTLS")
    assert not any(command.startswith("MAIL") for command in scripted.commands)


@pytest.mark.parametrize("reply", ["454 4.7.0 TLS not available", "501 5.5.4 No", "250 fine, but no TLS"])
def test_refused_tls_never_goes_on_in_plain(
    mailroom: Mailroom, scripted: ScriptedServer, caplog: pytest.LogCaptureFixture, reply: str
) -> None:
    scripted.script |= {"EHLO": ["250-test.example\r\n250 STARTTLS"], "STARTTLS": [reply]}
    trouble_is_told(mailroom, f"smtp://user:secret@127.0.0.1:{scripted.port}", caplog, f"refuses TLS: {reply}")
    assert [command.split()[0] for command in scripted.commands] == ["ehlo", "STARTTLS", "QUIT"]


@pytest.mark.parametrize("scheme", ["smtp", "smtps"])
def test_a_certificate_of_an_unknown_authority(
    mailroom: Mailroom, authority: Authority, caplog: pytest.LogCaptureFixture, scheme: str
) -> None:
    options = {"starttls" if scheme == "smtp" else "tls": authority.context}
    with MailServer(**options).running() as server:  # type: ignore[arg-type]
        trouble_is_told(mailroom, f"{scheme}://127.0.0.1:{server.port}", caplog, "certificate was not accepted")
        assert server.mails == []


def test_a_certificate_for_another_host(
    mailroom: Mailroom, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with MailServer(tls=authority.context).running() as server:
        # Another spelling of 127.0.0.1, which is what the certificate is for
        url = f"smtps://127.1:{server.port}?ca_file={authority.ca_file}"
        trouble_is_told(mailroom, url, caplog, "certificate was not accepted")


def test_what_comes_in_plain_after_starttls_is_forgotten(mailroom: Mailroom, authority: Authority) -> None:
    """An attacker's replies, injected before the handshake, are not taken for the server's (RFC 3207 section 6)."""
    server = ScriptedServer(tls=authority.context)
    server.script = {
        "EHLO": ["250-test.example\r\n250 STARTTLS", "250 test.example"],
        "STARTTLS": [INJECTED_START_TLS],
        "RCPT": ["550 5.1.1 No such user"],
    }
    with server.running():
        job_id = mailroom.post()
        mailroom.work(f"smtp://127.0.0.1:{server.port}?ca_file={authority.ca_file}")
        assert mailroom.log(job_id) == [("refused", ADA, 550)]
        # Had the injected reply counted, each later one would have been taken for the next command's
        assert server.commands[-2:] == ["RCPT TO:<ada@example.com>", "QUIT"]


def test_the_number_of_attempts_is_bounded(mailroom: Mailroom, scripted: ScriptedServer) -> None:
    scripted.script["RCPT"] = ["450 4.2.1 Never today"]
    job_id = mailroom.post(max_attempts=3)
    for _ in range(4):
        mailroom.work(plain(scripted))
    job = mailroom.job(job_id)
    assert (job.status, job.attempts) == ("dlq", 3)
    assert "450 4.2.1 Never today" in str(job.last_error)
