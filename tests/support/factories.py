"""Rows for tests: ``JobFactory(dlq=True, tenant_id=...)`` adds one to the test's session and flushes it.

The fixture ``session`` binds the factories to itself; other sessions go in by ``factories_write_to``.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

from factory.alchemy import SQLAlchemyModelFactory
from factory.declarations import LazyFunction, SelfAttribute, Sequence, Trait
from sqlalchemy.orm import Session

from jobqueue.models import SYSTEM_TENANT_ID, Job, Tenant
from jobqueue.states import JobStatus

_session: ContextVar[Session] = ContextVar("session the factories write to")

WORKER = "test-host/4711/5d1f6c1e-0000-4000-8000-000000000001"
"""Who holds the claim of a running job, unless the test names another."""

LONG_AGO = timedelta(days=1)


@contextmanager
def factories_write_to(session: Session) -> Iterator[None]:
    """Have the factories add their rows to ``session`` within the block."""
    token = _session.set(session)
    try:
        yield
    finally:
        _session.reset(token)


def _now() -> datetime:
    return datetime.now(UTC)


def _long_ago() -> datetime:
    return _now() - LONG_AGO


class TenantFactory(SQLAlchemyModelFactory):
    class Meta:
        model = Tenant
        sqlalchemy_session_factory = _session.get
        sqlalchemy_session_persistence = "flush"

    name = Sequence(lambda n: f"tenant {n}")


class JobFactory(SQLAlchemyModelFactory):
    """A pending job that is due; of the system tenant unless the test names another."""

    class Meta:
        model = Job
        sqlalchemy_session_factory = _session.get
        sqlalchemy_session_persistence = "flush"

    class Params:
        running = Trait(
            status=JobStatus.RUNNING,
            attempts=1,
            claimed_by=WORKER,
            claimed_at=LazyFunction(_now),
            started_at=SelfAttribute("claimed_at"),
        )
        stale = Trait(running=True, claimed_at=LazyFunction(_long_ago))
        ended = Trait(
            attempts=1,
            claimed_by=WORKER,
            claimed_at=LazyFunction(_now),
            started_at=SelfAttribute("claimed_at"),
            completed_at=LazyFunction(_now),
        )
        done = Trait(ended=True, status=JobStatus.DONE)
        failed = Trait(ended=True, status=JobStatus.FAILED, last_error="stopped: the order was withdrawn")
        dlq = Trait(
            ended=True,
            status=JobStatus.DLQ,
            attempts=8,
            last_error="ConnectionRefusedError: mail.example.com:25",
        )

    tenant_id = SYSTEM_TENANT_ID
    job_kind = "email_send"
    payload = LazyFunction(lambda: {"to": "ada@example.com"})


def new_job(**values: Any) -> Job:
    """``JobFactory(...)``, for the type checker."""
    job: Job = JobFactory.create(**values)
    return job


def new_tenant(**values: Any) -> Tenant:
    """``TenantFactory(...)``, for the type checker."""
    tenant: Tenant = TenantFactory.create(**values)
    return tenant
