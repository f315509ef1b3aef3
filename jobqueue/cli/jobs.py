"""``jobqueue jobs list`` and ``show``: look at jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import click
from sqlalchemy import Text, cast, select
from sqlalchemy.orm import Session

from jobqueue import AuditEntry, Job, JobStatus
from jobqueue.cli.changes import cancel_command, discard_command, replay_command
from jobqueue.cli.database import Configuration
from jobqueue.cli.filters import filter_options, job_filter
from jobqueue.cli.output import Column, age, first_line, print_fields, print_json, print_table
from jobqueue.cli.parameters import json_option
from jobqueue.errors import JobNotFound, PayloadError
from jobqueue.models import EmailLog
from jobqueue.payload import Json, read_json
from jobqueue.repository import queries

_LIST: Final = [
    Column("id"),
    Column("kind"),
    Column("status"),
    Column("attempts", right=True),
    Column("tenant", flexible=True),
    Column("age", right=True),
    Column("available", right=True),
    Column("error", flexible=True),
]

# In the order in which they are shown. The payload is not among them
_FIELDS: Final = (
    *("id", "job_kind", "status", "tenant_id", "priority", "attempts", "max_attempts", "available_at"),
    *("created_at", "created_by", "started_at", "claimed_at", "claimed_by", "completed_at"),
    *("idempotency_key", "dedup_key", "last_error"),
)
_AUDIT_FIELDS: Final = ("at", "action", "actor", "details")
_EMAIL_FIELDS: Final = ("at", "outcome", "code", "reply", "sender", "recipients", "message_id")


@click.group("jobs", no_args_is_help=True)
def jobs_group() -> None:
    """Look at jobs, and bring them back, stop or delete them."""


for _command in (replay_command, discard_command, cancel_command):
    jobs_group.add_command(_command)


@jobs_group.command("list")
@filter_options
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most so many.")
@json_option
@click.pass_obj
def list_command(configuration: Configuration, /, limit: int, as_json: bool, **filters: Any) -> None:
    """List jobs, newest first. Payloads are never shown."""
    with configuration.session() as session:
        # One more than asked for tells whether there are more
        jobs = queries.list_jobs(session, job_filter(**filters, limit=limit + 1))
        now = queries.now(session)
    more = len(jobs) > limit
    jobs = jobs[:limit]
    if as_json:
        print_json([_as_document(job) for job in jobs])
    elif jobs:
        print_table(_LIST, [_row(job, now) for job in jobs])
    else:
        click.echo("no job matches")
    if more:
        click.echo(f"these are the newest {limit}, there are more; see them with --limit", err=True)


@jobs_group.command("show")
@click.argument("job_id", metavar="ID", type=click.UUID)
@click.option("--payload", "with_payload", is_flag=True, help="Show the payload too; it may hold personal data.")
@json_option
@click.pass_obj
def show_command(configuration: Configuration, job_id: UUID, with_payload: bool, as_json: bool) -> None:
    """Show all that is known of a job: its row, what was done to it, and its mails.

    Of a job that is gone, show what the audit log kept. Exit code 1 then.
    """
    with configuration.session() as session:
        history = queries.history(session, job_id)
        payload = _payload(session, job_id) if with_payload else None
    if as_json:
        print_json(_history_document(history, payload))
    else:
        _print_history(history, payload)
    if isinstance(payload, str):
        click.echo("the payload is shown as its text: Python cannot read it", err=True)
    if history.job is None:
        raise JobNotFound(job_id)


def _row(job: Job, now: datetime) -> list[object]:
    return [
        job.id,
        job.job_kind,
        job.status.value,
        f"{job.attempts}/{job.max_attempts}",
        job.tenant_id,
        age(now - job.created_at),
        _available(job, now),
        first_line(job.last_error) or "-",
    ]


def _available(job: Job, now: datetime) -> str:
    """When a pending job may start; it says nothing of any other."""
    if job.status is not JobStatus.PENDING:
        return "-"
    return f"in {age(job.available_at - now)}" if job.available_at > now else "now"


def _as_document(row: Job | AuditEntry | EmailLog, fields: tuple[str, ...] = _FIELDS) -> dict[str, Any]:
    return {name: getattr(row, name) for name in fields}


def _payload(session: Session, job_id: UUID) -> Json | str | None:
    """The payload; its text where Python cannot read or write what was stored past jobqueue."""
    text = session.scalars(select(cast(Job.payload, Text)).where(Job.id == job_id)).one_or_none()
    if text is None:
        return None
    try:
        payload = read_json(text)
        json.dumps(payload, indent=2)
    except (PayloadError, RecursionError):
        return text
    return payload


def _history_document(history: queries.History, payload: Json | str | None) -> dict[str, Any]:
    job = None if history.job is None else _as_document(history.job)
    if job is not None and payload is not None:
        job["payload"] = payload
    return {
        "job": job,
        "audit": [_as_document(entry, _AUDIT_FIELDS) for entry in history.audit],
        "emails": [_as_document(email, _EMAIL_FIELDS) for email in history.emails],
    }


def _print_history(history: queries.History, payload: Json | str | None) -> None:
    if history.job is not None:
        shown = "(not shown; --payload shows it)" if payload is None else payload
        print_fields(_as_document(history.job) | {"payload": shown})
    _print_entries("audit log", history.audit, _AUDIT_FIELDS)
    _print_entries("mails", history.emails, _EMAIL_FIELDS)


def _print_entries(title: str, rows: Sequence[AuditEntry | EmailLog], fields: tuple[str, ...]) -> None:
    for number, row in enumerate(rows, 1):
        click.echo(f"\n{title}, {number} of {len(rows)}")
        print_fields(_as_document(row, fields))
