"""``mdm.email_log``, as the e-mail handler uses it: what is known of a mail before an attempt, and what it adds.

A job's rows tell who has the mail already, so that a retry reaches only those who do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from jobqueue.bundled.email.exchange import Verdicts
from jobqueue.bundled.email.message import Message
from jobqueue.bundled.email.reply import Delivery, Verdict, unknown
from jobqueue.errors import MailError
from jobqueue.failure import failure_summary
from jobqueue.handlers import JobContext
from jobqueue.models import EmailLog, Job
from jobqueue.states import JobStatus

_ON_ITS_WAY: Final = unknown("the worker ended while it was sending the mail")


def earlier_verdicts(job: JobContext) -> Verdicts:
    """The last verdict on each recipient in earlier attempts of this job; once accepted is accepted for ever.

    Looked up before every attempt, the first included: a job that was replayed starts again at attempt 1.
    """
    query = select(EmailLog).where(EmailLog.job_id == job.id).order_by(EmailLog.id)
    verdicts: Verdicts = {}
    with job.separate_session() as session:
        for row in session.scalars(query):
            verdict = Verdict(Delivery(row.outcome), row.reply or "", row.code)
            for recipient in row.recipients:
                if recipient not in verdicts or verdicts[recipient].delivery is not Delivery.ACCEPTED:
                    verdicts[recipient] = verdict
    return verdicts


def rows(job: JobContext, message: Message, verdicts: Verdicts) -> list[EmailLog]:
    """One row for each verdict, with all recipients that got it."""
    return [_row(job, message, recipients, verdict) for verdict, recipients in by_verdict(verdicts).items()]


def by_verdict(verdicts: Verdicts) -> dict[Verdict, list[str]]:
    groups: dict[Verdict, list[str]] = {}
    for recipient, verdict in verdicts.items():
        groups.setdefault(verdict, []).append(recipient)
    return groups


def keep(job: JobContext, entries: Sequence[EmailLog]) -> None:
    """Write rows of an attempt that is about to fail. The failure is what counts: not being able to is only logged.

    An attempt that lost its job adds only who has the mail. Its other verdicts are late: they must not cover up
    what the attempt that holds the job has written meanwhile.
    """
    try:
        with job.separate_session() as session:
            held = _holds_job(session, job)
            session.add_all(entry for entry in entries if held or entry.outcome == Delivery.ACCEPTED)
    except SQLAlchemyError as error:
        job.logger.error(
            "mdm.email_log could not be written, so that recipients who have the mail may get it again: %s",
            failure_summary(error),
        )


def mark_on_its_way(job: JobContext, message: Message, recipients: Sequence[str]) -> None:
    """Write down that the mail is being sent, before it is: what a killed worker leaves behind must be known.

    :raises MailError: if this attempt does not hold the job any more.
    """
    with job.separate_session() as session:
        if not _holds_job(session, job):
            raise MailError("the job was taken over by another attempt; this one sent nothing")
        session.add(_row(job, message, recipients, _ON_ITS_WAY))


def _holds_job(session: Session, job: JobContext) -> bool:
    """Whether this attempt still has its job: by its token, since after a replay another has the same number.

    The row stays locked, so that this holds until the commit, which must follow at once: outcomes and renewals pass
    over locked rows. The row of another attempt is not locked.
    """
    token = job.services.token()
    # The status not among the conditions, or the planner may take the index of running jobs, with its dead entries
    query = select(Job.status).where(
        Job.id == token.id, Job.claimed_by == token.worker, Job.started_at == token.started_at
    )
    return session.scalar(query.with_for_update(read=True)) is JobStatus.RUNNING


def _row(job: JobContext, message: Message, recipients: Sequence[str], verdict: Verdict) -> EmailLog:
    return EmailLog(
        job_id=job.id,
        tenant_id=job.tenant_id,
        message_id=message.message_id,
        sender=message.sender,
        recipients=list(recipients),
        outcome=verdict.delivery.value,
        code=verdict.code,
        reply=verdict.text,
    )
