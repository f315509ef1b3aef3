"""The worker's own row."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import delete, func
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobqueue.models import WorkerRecord


def report_alive(session: Session, record: dict[str, Any]) -> None:
    """Write the worker's row, or renew ``seen_at`` (the row may have been cleaned up meanwhile)."""
    now = func.clock_timestamp()
    statement = insert(WorkerRecord).values(**record)
    session.execute(statement.on_conflict_do_update(index_elements=["id"], set_={"seen_at": now}))


def report_gone(session: Session, worker: str) -> None:
    session.execute(delete(WorkerRecord).where(WorkerRecord.id == worker))


def forget_dead(session: Session, unseen_for: timedelta) -> None:
    """Remove the rows of workers that ended without saying so."""
    session.execute(delete(WorkerRecord).where(WorkerRecord.seen_at < func.statement_timestamp() - unseen_for))
