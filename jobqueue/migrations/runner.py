"""Migrate jobqueue on its own (Way C): its own environment, its own version table, no ini file."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import URL, Connection, NullPool, create_engine, make_url, text

from jobqueue.errors import SchemaOutOfDate
from jobqueue.migrations.schema import HEAD, SCHEMA, VERSION_TABLE

LOCK_KEY: Final = int.from_bytes(b"jobqueue", "big")
"""Key of the advisory lock under which the revisions are applied."""

# Alembic's `context` and `op` exist once per process
_one_at_a_time: Final = threading.Lock()


def upgrade(database: str | URL | Connection, to: str = "head") -> None:
    """Bring ``database`` up to the revision ``to``, and record it in ``mdm.jobqueue_version``.

    Given a URL, each revision is committed by itself. Given a connection, all of them run in its transaction,
    which the caller commits. Who comes while another process migrates waits for it, and then has nothing to do.

    :raises SchemaOutOfDate: if another Alembic environment made the tables, or if a revision is not known here.
    """
    with _locked(database) as connection, _one_at_a_time, _explained():
        command.upgrade(alembic_config(connection), to)


def downgrade(database: str | URL | Connection, to: str) -> None:
    """Take ``database`` down to the revision ``to``, or to ``base``: without jobqueue's tables, and their rows.

    Transactions, waiting and errors are those of ``upgrade``.
    """
    with _locked(database) as connection, _one_at_a_time, _explained():
        command.downgrade(alembic_config(connection), to)


def upgrade_sql(to: str = "head") -> str:
    """Return the SQL script that ``upgrade`` amounts to on a database without jobqueue."""
    config = alembic_config()
    config.output_buffer = StringIO()
    with _one_at_a_time, _explained():
        command.upgrade(config, to, sql=True)
    return config.output_buffer.getvalue()


def alembic_config(connection: Connection | None = None) -> Config:
    """The configuration of jobqueue's own environment, as the functions of ``alembic.command`` take it."""
    config = Config()
    config.set_main_option("script_location", "jobqueue:migrations")
    config.attributes["connection"] = connection
    return config


def database_url(url: str | URL) -> URL:
    """Return ``url`` with psycopg as its driver, where it names none or one that is asynchronous only."""
    parsed = make_url(url)
    if parsed.drivername in ("postgres", "postgresql", "postgresql+asyncpg"):
        return parsed.set(drivername="postgresql+psycopg")
    return parsed


@contextmanager
def _locked(database: str | URL | Connection) -> Iterator[Connection]:
    """Yield a connection to migrate on, holding the advisory lock.

    The lock is one of a transaction, since a session's lock gets lost behind a transaction-mode pooler. Each
    revision is a transaction of its own, so the lock is held by a second connection.
    """
    if isinstance(database, Connection):
        database.execute(_LOCK)
        _refuse_what_another_made(database)
        yield database
        return
    engine = create_engine(database_url(database), poolclass=NullPool)
    with engine.begin() as guard:
        guard.execute(_NO_TIMEOUTS)
        guard.execute(_LOCK)
        _refuse_what_another_made(guard)
        with engine.connect() as connection:
            yield connection


def _refuse_what_another_made(connection: Connection) -> None:
    if connection.scalar(_MADE_BY_ANOTHER):
        raise SchemaOutOfDate(
            f"jobqueue's tables are there but {SCHEMA}.{VERSION_TABLE} is not, so another Alembic environment made "
            "them; run `alembic upgrade heads` in that one"
        )


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except CommandError as error:
        raise SchemaOutOfDate(
            f"{error}; this version of jobqueue knows the revisions up to {HEAD}, a later one needs a later version"
        ) from error


_LOCK: Final = text(f"SELECT pg_advisory_xact_lock({LOCK_KEY})")

_MADE_BY_ANOTHER: Final = text(
    f"SELECT to_regclass('{SCHEMA}.job') IS NOT NULL AND to_regclass('{SCHEMA}.{VERSION_TABLE}') IS NULL"
)

# The guard waits for as long as another process migrates, then idles for as long as this one does
_NO_TIMEOUTS: Final = text(
    "SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN "
    "('idle_in_transaction_session_timeout', 'lock_timeout', 'statement_timeout', 'transaction_timeout')"
)
