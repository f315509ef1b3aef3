"""The connections of a worker: who uses which, and that none can starve another."""

from __future__ import annotations

import logging
from typing import Any, Final

from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

# A server that does not answer is noticed by the kernel, not by waiting for ever
_CONNECT: Final[dict[str, Any]] = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "client_encoding": "utf8",
}

# At DEBUG, SQLAlchemy logs the rows that it reads, and with them every payload
_LOGGING_NAME: Final = "jobqueue"
logging.getLogger(f"sqlalchemy.engine.Engine.{_LOGGING_NAME}").addFilter(lambda record: record.levelno > logging.DEBUG)


class Databases:
    """Engines at READ COMMITTED, which the queue's statements expect whatever the server's default is.

    ``queue`` serves claims, outcomes and recovery; ``heartbeat`` has a connection of its own, so that renewals
    never wait for one; ``attempts`` and ``async_attempts`` are behind ``job.session``.
    """

    def __init__(self, url: URL, concurrency: int) -> None:
        self._url = url
        # Not prepared: a plan for these arrays and limits, and not a generic one, is worth planning each time
        self.queue = self._engine("queue", prepare=False, pool_size=4, max_overflow=0)
        self.heartbeat = self._engine("heartbeat", pool_size=1, max_overflow=0)
        # Twice the slots: an attempt may use job.session and job.separate_session at once
        self._attempts_pool: dict[str, Any] = {
            "pool_size": concurrency,
            "max_overflow": concurrency,
            "pool_pre_ping": True,
        }
        self.attempts = self._engine("job", **self._attempts_pool)
        self._async_attempts: AsyncEngine | None = None
        self._disposed = False

    @property
    def async_attempts(self) -> AsyncEngine:
        """Made at its first use, which is always in the event loop's thread."""
        if self._async_attempts is None:
            self._async_attempts = create_async_engine(self._url, **self._options("async job"), **self._attempts_pool)
        return self._async_attempts

    async def dispose_async(self) -> None:
        if self._async_attempts is not None:
            await self._async_attempts.dispose()

    def dispose(self) -> None:
        self._disposed = True
        for engine in (self.queue, self.heartbeat, self.attempts):
            engine.dispose()

    def _engine(self, part: str, *, prepare: bool = True, **pool: Any) -> Engine:
        engine = create_engine(self._url, **self._options(part, prepare), **pool)
        event.listen(engine, "checkin", self._close_if_late)
        return engine

    def _close_if_late(self, connection: DBAPIConnection | None, record: ConnectionPoolEntry) -> None:
        """A handler that the worker left behind may still use its sessions: their connections are not kept."""
        if self._disposed and connection is not None:
            record.invalidate()

    def _options(self, part: str, prepare: bool = True) -> dict[str, Any]:
        connect_args = _CONNECT | {"application_name": f"jobqueue {part}"}
        if not prepare:
            connect_args["prepare_threshold"] = None
        # Parameters of a failed statement are somebody's data: they stay out of every message
        return {
            "isolation_level": "READ COMMITTED",
            "hide_parameters": True,
            "logging_name": _LOGGING_NAME,
            "connect_args": connect_args,
        }
