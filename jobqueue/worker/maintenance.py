"""The maintenance loop of a worker: recovery."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from jobqueue.maintenance.reaper import BATCH, Reaper
from jobqueue.worker.service import DATABASE_TROUBLE, Outage, Service


class MaintenanceLoop(Service):
    """Sweeps at the start, since there may be jobs of a worker that crashed just before, and then every so often."""

    def __init__(self, engine: Engine, reaper: Reaper, every: timedelta) -> None:
        super().__init__("maintenance")
        self._engine = engine
        self._reaper = reaper
        self._every = every.total_seconds()
        self._outage = Outage("recovering stale jobs")

    def run(self) -> None:
        pause = 0.0
        while not self._stopping.wait(pause):
            try:
                with Session(self._engine) as session, session.begin():
                    recovered = self._reaper.sweep(session)
                # In a transaction of its own: that it fails, as for want of a right, must not undo the recovery
                with Session(self._engine) as session, session.begin():
                    self._reaper.forget(session)
            except DATABASE_TROUBLE as error:
                pause = min(self._outage.failed(error), self._every)
            else:
                self._outage.over()
                pause = 0.0 if recovered == BATCH else self._every
