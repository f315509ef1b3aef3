"""When nobody can know whether the mail was taken (CASES A34): the same mail again, or a dead letter, as asked for."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.orm import Session

from jobqueue import JobRepository, load_settings
from jobqueue.bundled import email
from jobqueue.worker.attempt import Attempt
from jobqueue.worker.databases import Databases
from tests.email.conftest import Mailroom, plain
from tests.support.smtp import CLOSE, RESET, SILENT, ScriptedServer, Step
from tests.support.waiting import wait_until

ADA = ["ada@example.com"]

WORKER = """
from jobqueue.bundled import email
from jobqueue.worker import Worker
Worker(email.handlers).run()
"""

lost_answers = pytest.mark.parametrize("step", [CLOSE, RESET, SILENT, "gibberish"], ids=lambda step: str(step))


@lost_answers
def test_a_lost_answer_repeats_the_same_mail(mailroom: Mailroom, scripted: ScriptedServer, step: Step) -> None:
    scripted.script["END"] = [step, "250 2.0.0 queued"]
    job_id = mailroom.post(html="<p>Hi</p>", attachments=[{"filename": "a.txt", "text": "x"}])
    mailroom.work(plain(scripted), answer_seconds=1)
    job = mailroom.job(job_id)
    assert (job.status, job.attempts) == ("pending", 1)
    assert "outcome unknown: the mail was sent, but no answer came" in str(job.last_error)

    mailroom.work(plain(scripted))
    assert mailroom.job(job_id).status == "done"
    first, second = scripted.mails
    assert first.data == second.data
    assert first.message["Message-ID"] == f"<{job_id}@sender.example>"


@lost_answers
def test_at_most_once_makes_a_lost_answer_a_dead_letter(
    mailroom: Mailroom, scripted: ScriptedServer, step: Step
) -> None:
    scripted.script["END"] = [step, "250 2.0.0 queued"]
    job_id = mailroom.post(at_most_once=True)
    mailroom.work(plain(scripted), answer_seconds=1)
    mailroom.work(plain(scripted))
    job = mailroom.job(job_id)
    assert (job.status, job.attempts) == ("dlq", 1)
    assert str(job.last_error).startswith("not delivered: ada@example.com: outcome unknown: ")
    assert len(scripted.mails) == 1


def test_what_did_go_wrong_for_sure_is_tried_again_at_most_once_or_not(
    mailroom: Mailroom, scripted: ScriptedServer
) -> None:
    scripted.script |= {
        "RCPT": ["450 4.2.1 Later", "250 OK"],
        "DATA": [CLOSE, "354 go"],
        "END": ["451 4.3.0 Full", "250 OK"],
    }
    job_id = mailroom.post(at_most_once=True)
    for _ in range(4):
        mailroom.work(plain(scripted))
    job = mailroom.job(job_id)
    # An attempt that was cut off at DATA has been marked, but the mail was surely not taken
    assert (job.status, job.attempts) == ("done", 4)


def test_an_operator_may_replay_a_mail_whose_outcome_is_unknown(mailroom: Mailroom, scripted: ScriptedServer) -> None:
    scripted.script["END"] = [CLOSE, "250 2.0.0 queued"]
    job_id = mailroom.post(at_most_once=True)
    mailroom.work(plain(scripted))
    mailroom.replay(job_id)
    mailroom.work(plain(scripted))
    assert mailroom.job(job_id).status == "done"
    assert scripted.mails[0].data == scripted.mails[1].data


@pytest.mark.parametrize("step", [CLOSE, RESET, SILENT, "421 4.3.2 Shutting down"], ids=lambda step: str(step))
def test_trouble_at_quit_is_success(mailroom: Mailroom, scripted: ScriptedServer, step: Step) -> None:
    scripted.script["QUIT"] = [step]
    job_id = mailroom.post()
    mailroom.work(plain(scripted))
    mailroom.work(plain(scripted))
    assert mailroom.job(job_id).status == "done"
    assert len(scripted.mails) == 1


@pytest.mark.parametrize("at_most_once", [False, True])
def test_a_worker_killed_before_the_outcome_was_written(
    mailroom: Mailroom, scripted: ScriptedServer, worker_environment: dict[str, str], at_most_once: bool
) -> None:
    scripted.script["END"] = [SILENT, "250 2.0.0 queued"]
    job_id = mailroom.post(at_most_once=at_most_once)
    environment = worker_environment | {
        "JOBQUEUE_SMTP_URL": plain(scripted),
        "JOBQUEUE_SMTP_SENDER": "Shop <shop@sender.example>",
    }
    worker = subprocess.Popen([sys.executable, "-c", WORKER], env=environment)
    try:
        wait_until(lambda: scripted.mails, what="the mail at the server")
    finally:
        worker.kill()
        worker.wait()
    with Session(mailroom.engine) as session, session.begin():
        assert len(JobRepository(session).recover_stale(timedelta(0))) == 1

    mailroom.work(plain(scripted))
    job = mailroom.job(job_id)
    if at_most_once:
        assert (job.status, job.attempts) == ("dlq", 2)
        assert "outcome unknown: the worker ended while it was sending the mail" in str(job.last_error)
        assert len(scripted.mails) == 1
    else:
        assert job.status == "done"
        assert scripted.mails[0].data == scripted.mails[1].data


def test_an_attempt_that_lost_its_job_sends_nothing_at_most_once(mailroom: Mailroom, scripted: ScriptedServer) -> None:
    """A worker that was asleep for long: meanwhile its job was recovered, and is sent by another."""
    job_id = mailroom.post(at_most_once=True)

    def recover_once() -> None:
        scripted.before_reply.clear()
        with Session(mailroom.engine) as session, session.begin():
            assert len(JobRepository(session).recover_stale(timedelta(0))) == 1

    scripted.before_reply["RCPT"] = recover_once
    mailroom.work(plain(scripted))
    job = mailroom.job(job_id)
    assert (job.status, job.attempts, scripted.connections) == ("done", 2, 2)
    assert len(scripted.mails) == 1
    assert scripted.commands.count("DATA") == 1


def test_a_late_verdict_does_not_cover_up_what_the_next_attempt_wrote(
    mailroom: Mailroom, scripted: ScriptedServer
) -> None:
    """The first attempt sleeps until the second has sent the mail, and then finds its own connection closed."""
    job_id = mailroom.post()

    def recover_and_wait_for_the_mail() -> None:
        scripted.before_reply.clear()
        with Session(mailroom.engine) as session, session.begin():
            assert len(JobRepository(session).recover_stale(timedelta(0))) == 1
        wait_until(lambda: mailroom.job(job_id).status == "done", what="the second attempt")
        woken.set()

    woken = threading.Event()
    scripted.before_reply["RCPT"] = recover_and_wait_for_the_mail
    scripted.script["DATA"] = ["354 go", CLOSE]
    mailroom.work(plain(scripted), stale_after=3)  # the lost claim is noticed within a second
    assert woken.wait(30)
    # The worker has left the first attempt behind: what it has to say, it says now
    wait_until(lambda: not any(thread.name.startswith("jobqueue-slot") for thread in threading.enumerate()))
    assert len(scripted.mails) == 1
    assert mailroom.log(job_id) == [("accepted", ADA, 250)]


@pytest.fixture
def claim(mailroom: Mailroom, scripted: ScriptedServer, database_url: str) -> Iterator[Callable[[], Attempt]]:
    """Claims the one job that is due, always for the worker of the same name."""
    databases = Databases(make_url(database_url), 2)
    handler = email.handlers_for(load_settings(smtp_url=plain(scripted), smtp_sender="a@sender.example")).get(
        "email_send"
    )
    assert handler is not None

    def claim() -> Attempt:
        with Session(mailroom.engine) as session, session.begin():
            (claimed,) = JobRepository(session).claim(worker="w")
        return Attempt(claimed, handler, databases, float("inf"))

    yield claim
    databases.dispose()


def lose(mailroom: Mailroom, attempt: Attempt) -> None:
    """Recovery takes the only attempt's job to the dead letters, and an operator has it tried again."""
    with Session(mailroom.engine) as session, session.begin():
        assert [job.status for job in JobRepository(session).recover_stale(timedelta(0))] == ["dlq"]
    mailroom.replay(attempt.claimed.id)


def test_a_replay_begins_with_the_number_of_the_lost_attempt_which_still_sends_nothing_at_most_once(
    mailroom: Mailroom, scripted: ScriptedServer, claim: Callable[[], Attempt]
) -> None:
    job_id = mailroom.post(at_most_once=True, max_attempts=1)
    late = claim()
    lose(mailroom, late)
    held = claim()
    assert (late.claimed.attempt, held.claimed.attempt) == (1, 1)

    late.run(timedelta(0))
    assert (scripted.mails, mailroom.log(job_id)) == ([], [])
    held.run(timedelta(0))
    assert len(scripted.mails) == 1
    assert mailroom.log(job_id) == [("deferred", ADA, None), ("accepted", ADA, 250)]


def test_only_who_has_the_mail_counts_of_what_a_lost_attempt_has_to_say(
    mailroom: Mailroom, scripted: ScriptedServer, claim: Callable[[], Attempt]
) -> None:
    """Also while the attempt that holds the job has the same number."""
    scripted.script["RCPT bob@example.com"] = ["450 4.2.1 Later"]
    job_id = mailroom.post("ada@example.com", "bob@example.com", max_attempts=1)
    late = claim()
    lose(mailroom, late)
    claim()
    late.run(timedelta(0))
    assert mailroom.log(job_id) == [("accepted", ADA, 250)]


@pytest.mark.parametrize("at_most_once", [False, True])
def test_no_transaction_stands_open_while_the_server_thinks(
    mailroom: Mailroom, scripted: ScriptedServer, at_most_once: bool
) -> None:
    seen: list[int | None] = []

    def look() -> None:
        with Session(mailroom.engine) as session:
            seen.append(
                session.scalar(
                    text(
                        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                        "AND application_name = 'jobqueue job' AND xact_start IS NOT NULL"
                    )
                )
            )

    scripted.before_reply |= {"CONNECT": look, "END": look}
    mailroom.post(at_most_once=at_most_once)
    mailroom.work(plain(scripted))
    assert seen == [0, 0]
