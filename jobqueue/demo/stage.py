"""The stage: what the story plays on. It is set up in a folder of its own, and nothing is left of it afterwards."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sqlalchemy import Engine, NullPool, create_engine

from jobqueue.demo.interruptions import Interruptions
from jobqueue.demo.mailserver import HOST, MailServer
from jobqueue.demo.postgres import Postgres, running_postgres
from jobqueue.demo.worker import WorkerProcess

STALE_SECONDS: Final = 3
"""After how long a silent worker's jobs are recovered; 60 unless set."""

_DATA: Final = "pg"
_LONGEST_SOCKET: Final = 100  # the kernel takes 103 characters, on some systems 107


@dataclass(slots=True)
class Stage:
    """Everything the scenes use. ``database_url`` has no password: the server trusts whoever may enter its folder."""

    folder: Path
    postgres: Postgres
    engine: Engine
    mail_server: MailServer
    interruptions: Interruptions
    _workers: list[WorkerProcess] = field(default_factory=list)

    @property
    def database_url(self) -> str:
        return self.postgres.url.set(drivername="postgresql").render_as_string(hide_password=False)

    def start_worker(self) -> WorkerProcess:
        environment = os.environ | {
            "DATABASE_URL": self.database_url,
            "JOBQUEUE_STALE_AFTER": str(STALE_SECONDS),
            "JOBQUEUE_POLL_INTERVAL_MAX": "1",
            # Named, so that it need not ask DNS for its own name
            "JOBQUEUE_SMTP_URL": f"smtp+plain://{HOST}:{self.mail_server.port}?local_hostname=shop.example",
            "JOBQUEUE_SMTP_SENDER": "orders@shop.example",
        }
        worker = WorkerProcess(self.folder / f"worker-{len(self._workers) + 1}.log", environment)
        self._workers.append(worker)
        return worker

    def kill_workers(self) -> None:
        for worker in self._workers:
            worker.kill()


@contextmanager
def set_stage(interruptions: Interruptions, mail_server: MailServer, *, keep: bool) -> Iterator[Stage]:
    """Set the stage, and clear it whatever happens on it. ``keep`` leaves the server running, and the folder."""
    with ExitStack() as clearing:
        clearing.enter_context(_own_environment())
        folder = clearing.enter_context(_own_folder(keep=keep))
        postgres = clearing.enter_context(running_postgres(folder / _DATA, keep=keep))
        clearing.enter_context(mail_server.running())
        engine = create_engine(postgres.url, poolclass=NullPool, connect_args={"application_name": "jobqueue demo"})
        stage = Stage(folder, postgres, engine, mail_server, interruptions)
        clearing.callback(stage.kill_workers)
        yield stage


@contextmanager
def _own_environment() -> Iterator[None]:
    """What the user has set for databases and queues of their own is not meant for the demo, nor for its processes."""
    before = dict(os.environ)
    for name in before:
        if name.startswith(("PG", "JOBQUEUE_")) or name == "DATABASE_URL":
            del os.environ[name]
    # A locale that this machine lacks, as ssh may bring one along, would stop initdb
    os.environ["LC_ALL"] = "C"
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _own_folder(*, keep: bool) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="jobqueue-demo-", dir=_short_folder())).resolve()
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _short_folder() -> str:
    """Where temporary files go, unless a socket in there would have too long a name."""
    usual = tempfile.gettempdir()
    socket = f"{usual}/jobqueue-demo-12345678/{_DATA}/.s.PGSQL.5432"
    return usual if len(os.path.realpath(usual)) - len(usual) + len(socket) <= _LONGEST_SOCKET else "/tmp"
