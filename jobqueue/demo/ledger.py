"""What happened, as the database and the mailboxes have it. Every figure the demo prints is counted here."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final
from uuid import UUID

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from jobqueue.demo.mailserver import Mail
from jobqueue.demo.shop import ShopOrder, key_of
from jobqueue.demo.stage import Stage
from jobqueue.models import AuditEntry, Job
from jobqueue.states import ACTIVE, JobStatus

_LOST: Final = "worker lost: "
"""How ``last_error`` of a recovered job begins."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the work is."""

    pending: int
    running: int
    done: int
    dlq: int
    delivered: int
    """Mailboxes with a mail in them."""


def read_progress(stage: Stage) -> Progress:
    with Session(stage.engine) as session:
        rows = session.execute(select(Job.status, func.count()).group_by(Job.status)).tuples()
        count = Counter(dict(rows.all()))
    return Progress(
        pending=count[JobStatus.PENDING],
        running=count[JobStatus.RUNNING],
        done=count[JobStatus.DONE],
        dlq=count[JobStatus.DLQ],
        delivered=len({mail.recipient for mail in stage.mail_server.mails}),
    )


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A job as its row has it."""

    id: UUID
    key: str | None
    status: JobStatus
    worker: str | None
    """Whose claim it is, or was when it ended."""
    last_error: str | None

    def is_of(self, pid: int) -> bool:
        """Whether the worker process with this pid has it, or ended it."""
        return f"/{pid}/" in (self.worker or "")


@dataclass(frozen=True)
class Ledger:
    """Orders, jobs and mails at one moment, when nothing is on its way."""

    customers: dict[int, str]
    """By the number of their order."""
    jobs: Sequence[JobFacts]
    mails: Sequence[Mail]
    put_off: frozenset[str]

    @cached_property
    def job_of(self) -> dict[int, JobFacts]:
        """The job that sends the mail of an order, by the order's number."""
        keys = {job.key: job for job in self.jobs}
        return {number: keys[key] for number in self.customers if (key := key_of(number)) in keys}

    @cached_property
    def sent_by(self) -> dict[UUID, list[Mail]]:
        """The mails that a job sent, by the job's id, which their Message-ID holds."""
        ids = {str(job.id): job.id for job in self.jobs}
        sent: dict[UUID, list[Mail]] = {}
        for mail in self.mails:
            job_id = ids.get(mail.message_id.strip("<>").partition("@")[0])
            if job_id is not None:
                sent.setdefault(job_id, []).append(mail)
        return sent

    @cached_property
    def served(self) -> frozenset[int]:
        """The orders whose mail is in the mailbox of whoever placed them, and in no other."""
        return frozenset(
            number
            for number, job in self.job_of.items()
            if {mail.recipient for mail in self.sent_by.get(job.id, [])} == {self.customers[number]}
        )

    @cached_property
    def strays(self) -> int:
        """How many mails are there that no order asked for."""
        return len(self.mails) - sum(len(self.sent_by[self.job_of[number].id]) for number in self.served)

    @cached_property
    def repeated(self) -> dict[UUID, list[Mail]]:
        """The jobs that sent their mail more than once."""
        return {job_id: mails for job_id, mails in self.sent_by.items() if len(mails) > 1}

    @property
    def repeats_are_identical(self) -> bool:
        """Each repeat has the Message-ID of the first mail, and every other byte too."""
        return all(len({mail.data for mail in mails}) == 1 for mails in self.repeated.values())

    @cached_property
    def recovered(self) -> frozenset[UUID]:
        """The jobs that were last taken from a lost worker, as far as no later error hides it."""
        return frozenset(job.id for job in self.jobs if (job.last_error or "").startswith(_LOST))

    def has_job_for(self, number: int) -> bool:
        """Whether there is a job for this order, and be it without the order."""
        return any(job.key == key_of(number) for job in self.jobs)

    def ids(self, status: JobStatus) -> frozenset[UUID]:
        return frozenset(job.id for job in self.jobs if job.status is status)


def read_ledger(stage: Stage) -> Ledger:
    with Session(stage.engine) as session:
        customers = dict(session.execute(select(ShopOrder.number, ShopOrder.customer)).tuples().all())
        columns = (Job.id, Job.idempotency_key, Job.status, Job.claimed_by, Job.last_error)
        jobs = [JobFacts(*row) for row in session.execute(select(*columns).order_by(Job.id)).tuples()]
    return Ledger(customers, jobs, stage.mail_server.mails, stage.mail_server.put_off)


@dataclass(frozen=True, slots=True)
class Loss:
    """A killed worker, and the jobs that it held."""

    pid: int
    jobs: frozenset[UUID]


def read_loss(stage: Stage, pid: int, patience: float = 10) -> Loss:
    """What the killed worker held, once the server has noticed that its connections are gone."""
    deadline = time.monotonic() + patience
    with Session(stage.engine) as session:
        while session.scalar(_OTHERS) and time.monotonic() < deadline:
            session.rollback()
            time.sleep(0.02)
    return Loss(pid, frozenset(job.id for job in read_ledger(stage).jobs if job.is_of(pid) and job.status in ACTIVE))


def replays(stage: Stage, job_id: UUID) -> list[str | None]:
    """Who replayed the job, by the audit log."""
    with Session(stage.engine) as session:
        query = select(AuditEntry.actor).where(AuditEntry.job_id == job_id, AuditEntry.action == "replay")
        return list(session.scalars(query))


_OTHERS: Final = text(
    "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
)
