"""The heartbeat: renews the claims of held attempts on a connection of its own, and says that the worker lives."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from jobqueue.repository import JobRepository
from jobqueue.repository.workers import report_alive, report_gone
from jobqueue.worker.executor import Executor
from jobqueue.worker.service import DATABASE_TROUBLE, Outage, Service

logger = logging.getLogger("jobqueue.worker")


class Heartbeat(Service):
    """An attempt whose claim turns out to be lost is given up without an outcome."""

    def __init__(
        self, engine: Engine, executor: Executor, record: dict[str, Any], every: timedelta, lease: timedelta
    ) -> None:
        super().__init__("heartbeat")
        self._engine = engine
        self._executor = executor
        self._record = record
        self._every = every.total_seconds()
        self._lease = lease.total_seconds()
        self._outage = Outage("renewing claims")

    def run(self) -> None:
        pause = 0.0
        while not self._stopping.wait(pause):
            try:
                self._beat()
            except DATABASE_TROUBLE as error:
                # Sooner than a whole interval: claims run out meanwhile
                pause = min(self._outage.failed(error), self._every)
            else:
                self._outage.over()
                pause = self._every
        self._sign_off()

    def _sign_off(self) -> None:
        """Remove the worker's row. In this thread, since the database may not answer."""
        try:
            with Session(self._engine) as session, session.begin():
                report_gone(session, self._record["id"])
        except DATABASE_TROUBLE as error:
            self._outage.failed(error)

    def _beat(self) -> None:
        attempts = {attempt.claimed.id: attempt for attempt in self._executor.held.copy()}
        lease_until = time.monotonic() + self._lease
        with Session(self._engine) as session, session.begin():
            renewal = JobRepository(session).renew([attempt.claimed.token for attempt in attempts.values()])
        for job_id in renewal.renewed:
            attempts[job_id].lease_until = lease_until
        for job_id in renewal.lost:
            if self._executor.give_up(attempts[job_id], lambda: None):
                logger.warning("job %s: the claim was lost while the handler ran; its outcome will not count", job_id)
        # After the claims, and apart from them: it must not hold them up
        with Session(self._engine) as session, session.begin():
            report_alive(session, self._record)
