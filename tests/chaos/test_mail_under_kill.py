"""Two worker processes send mails to a real SMTP server; one is killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from jobqueue import Job, JobStatus, enqueue_many
from jobqueue.bundled.email import Email, email_send
from jobqueue.models import EmailLog
from tests.support.smtp import MailServer, Received
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MAILS = 2000
SLOTS = 10


def test_every_mail_arrives_and_a_repeat_is_the_same_mail(
    engine: Engine, worker_environment: dict[str, str], tenant_id: UUID, tmp_path: Path
) -> None:
    with Session(engine) as session, session.begin():
        mails = [Email(to=f"r{n}@example.com", subject=f"Mail {n}", text="Hello.") for n in range(MAILS)]
        enqueue_many(session, [email_send.new(mail, tenant_id=tenant_id) for mail in mails])

    with MailServer().running() as server:
        environment = worker_environment | {
            "JOBQUEUE_SMTP_URL": f"smtp+plain://127.0.0.1:{server.port}",
            "JOBQUEUE_SMTP_SENDER": "shop@example.com",
            "JOBQUEUE_STALE_AFTER": "3",
        }
        with worker(environment, tmp_path / "first.log") as first, worker(environment, tmp_path / "second.log"):
            wait_until(lambda: len(server.mails) >= MAILS // 3, what="a third of the mails")
            os.kill(first.pid, signal.SIGKILL)
            killed_at = count(engine, JobStatus.DONE)
            wait_until(lambda: count(engine, JobStatus.DONE) == MAILS, 200, what="the end of all jobs", every=0.2)

        assert killed_at < MAILS, "the worker was killed after the end, and not in the middle"
        arrived = by_message_id(server.mails)

    assert {to for mails in arrived.values() for mail in mails for to in mail.recipients} == {
        f"r{n}@example.com" for n in range(MAILS)
    }
    assert len(arrived) == MAILS, "a repeat has the Message-ID of the first"
    repeats = Counter(len(mails) for mails in arrived.values())
    print(f"{killed_at} of {MAILS} jobs were done at the kill; {repeats[2]} mails came twice, with the same Message-ID")
    assert set(repeats) <= {1, 2}
    assert repeats[2] <= SLOTS, "only what the killed worker had in its slots may be sent again"
    assert all(len({mail.data for mail in mails}) == 1 for mails in arrived.values()), "byte for byte the same mail"
    with Session(engine) as session:
        assert session.scalar(select(func.count()).select_from(EmailLog).where(EmailLog.outcome == "accepted")) == MAILS


@contextmanager
def worker(environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "jobqueue", "worker", "jobqueue.bundled.email:handlers"]
    with log.open("wb") as output:
        process = subprocess.Popen([*command, "--concurrency", str(SLOTS)], env=environment, stderr=output)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


def count(engine: Engine, status: JobStatus) -> int:
    with Session(engine) as session:
        return session.scalar(select(func.count()).select_from(Job).where(Job.status == status)) or 0


def by_message_id(mails: list[Received]) -> dict[str, list[Received]]:
    found = defaultdict(list)
    for mail in mails:
        found[mail.message["Message-ID"]].append(mail)
    return found
