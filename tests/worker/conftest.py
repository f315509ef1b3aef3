"""A bench to try workers on: jobs in, a worker or several on them, and what became of the jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, make_url, select, text
from sqlalchemy.orm import Session

from jobqueue import AuditEntry, Handlers, Job, JobStatus, NewJob, enqueue_many
from tests.support.proxy import Proxy, proxy_to
from tests.support.waiting import wait_until
from tests.support.worker import Workers, drain

KIND = "reindex"


class Bench:
    """``enqueue`` jobs, ``drain`` them, look at them."""

    def __init__(self, engine: Engine, url: str, tenant_id: UUID) -> None:
        self.engine = engine
        self.url = url
        self.tenant_id = tenant_id

    def enqueue(self, payload: dict[str, Any] | None = None, *, kind: str = KIND, **options: Any) -> UUID:
        return self.enqueue_many(1, payload, kind=kind, **options)[0]

    def enqueue_many(
        self, count: int, payload: dict[str, Any] | None = None, *, kind: str = KIND, **options: Any
    ) -> list[UUID]:
        given: dict[str, Any] = {"tenant_id": self.tenant_id, "payload": payload or {}} | options
        with Session(self.engine) as session, session.begin():
            return [job.id for job in enqueue_many(session, [NewJob(kind=kind, **given) for _ in range(count)])]

    def drain(self, handlers: Handlers, **options: Any) -> None:
        drain(handlers, self.url, **options)

    def job(self, job_id: UUID) -> Job:
        with Session(self.engine, expire_on_commit=False) as session:
            return session.get_one(Job, job_id)

    def status(self, job_id: UUID) -> str:
        return self.job(job_id).status.value

    def job_columns(self, job_id: UUID, *columns: str) -> tuple[Any, ...]:
        """Columns of a job, for rows that the model may not be able to read."""
        return tuple(self.execute(f"SELECT {', '.join(columns)} FROM mdm.job WHERE id = :id", id=job_id)[0])

    def statuses(self) -> dict[str, int]:
        """How many jobs there are of each status."""
        rows = self.execute("SELECT status::text, count(*) AS jobs FROM mdm.job GROUP BY 1")
        return {row.status: row.jobs for row in rows}

    def wait_for(self, job_id: UUID, status: JobStatus, timeout: float = 20) -> Job:
        wait_until(lambda: self.status(job_id) == status, timeout, what=f"job {job_id} to be {status}")
        return self.job(job_id)

    def audit(self) -> list[str]:
        with Session(self.engine) as session:
            return list(session.scalars(select(AuditEntry.action).order_by(AuditEntry.id)))

    def execute(self, statement: str, **parameters: Any) -> list[Any]:
        """Run SQL in a transaction of its own; its rows, if it has any."""
        with self.engine.begin() as connection:
            result = connection.execute(text(statement), parameters)
            return list(result) if result.returns_rows else []

    def set_for_database(self, setting: str, value: str) -> None:
        """A default of the database for connections made from now on."""
        name = make_url(self.url).database
        self.execute(f"ALTER DATABASE {name} SET {setting} = '{value}'")

    def create_notes(self) -> None:
        """A table of the application, for rows that handlers write."""
        self.execute("CREATE TABLE public.note (job_id uuid, text text CONSTRAINT note_text_uk UNIQUE)")

    def notes(self) -> list[str]:
        return [row.text for row in self.execute("SELECT text FROM public.note ORDER BY text")]


@pytest.fixture
def bench(engine: Engine, database_url: str, tenant_id: UUID) -> Bench:
    return Bench(engine, database_url, tenant_id)


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    """A proxy in front of the server, for the test's database."""
    with proxy_to(make_url(database_url)) as proxy:
        yield proxy


@pytest.fixture
def proxy_url(proxy: Proxy) -> str:
    return proxy.url.render_as_string(hide_password=False)


@pytest.fixture
def workers(tmp_path: Path, worker_environment: dict[str, str]) -> Iterator[Workers]:
    """Worker processes on the test's database."""
    workers = Workers(tmp_path, worker_environment)
    yield workers
    workers.close()
