"""The fetcher: claims jobs for free slots, and a few beyond when they are quick."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from jobqueue.repository import Claimed, JobRepository, Token
from jobqueue.worker.attempt import Attempt
from jobqueue.worker.executor import Executor
from jobqueue.worker.finisher import Finisher
from jobqueue.worker.read_ahead import ReadAhead
from jobqueue.worker.service import DATABASE_TROUBLE, Outage, Service

logger = logging.getLogger("jobqueue.worker")

MAX_BACKLOG: Final = 5000
"""No claims while so many outcomes are unwritten: the database has trouble, and more work would not help."""

STALLED: Final = 1.0
"""What was claimed beyond the slots and has not begun for so many seconds goes back, for others to take."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a worker claims, and under which name. ``tenants``: None for all."""

    worker: str
    kinds: tuple[str, ...]
    tenants: tuple[UUID, ...] | None


@dataclass(frozen=True, slots=True)
class Polling:
    """The pauses between looks for work while there is none: the first, and the longest; they double."""

    first: timedelta
    longest: timedelta


class Fetcher(Service):
    """Claims whenever there is room, and looks again at doubling intervals when nothing was due.

    With ``drain``, it ends by itself once nothing is due and nothing runs.
    """

    def __init__(
        self,
        engine: Engine,
        executor: Executor,
        finisher: Finisher,
        make_attempt: Callable[[Claimed, float], Attempt],
        scope: Scope,
        *,
        slots: int,
        read_ahead: ReadAhead,
        lease: timedelta,
        polling: Polling,
        drain: bool,
    ) -> None:
        super().__init__("fetcher")
        self._engine = engine
        self._executor = executor
        self._finisher = finisher
        self._make_attempt = make_attempt
        self._scope = scope
        self._slots = slots
        self._read_ahead = read_ahead
        self._lease = lease.total_seconds()
        self._polling = polling
        self._drain = drain
        self._outage = Outage("claiming jobs")
        self._returning: list[Token] = []
        """Claims to be given back, since their attempts did not begin."""
        self._give_up_at = float("inf")

    def stop(self, grace: float = 5.0) -> None:
        """Claim no more, give back what has not begun, for up to ``grace`` seconds if the database does not answer."""
        self._give_up_at = time.monotonic() + grace
        super().stop()
        self._executor.room.set()

    def run(self) -> None:
        self._fetch()
        self._give_back()

    def _fetch(self) -> None:
        pause = self._polling.first.total_seconds()
        while not self.stopping:
            idle = not self._executor.held and not self._finisher.backlog
            wanted = self._wait_for_room()
            if not wanted:
                continue
            claimed = self._claim(wanted)
            if claimed is None:
                continue
            if claimed == wanted:
                pause = self._polling.first.total_seconds()
            elif self._drain and not claimed and idle:
                return
            elif self._drain:
                self._wait_until_idle()
            else:
                pause = self._polling.first.total_seconds() if claimed else pause
                self._stopping.wait(pause)
                pause = min(2 * pause, self._polling.longest.total_seconds())

    def _wait_for_room(self) -> int:
        """How many jobs to claim now; 0 after a wait in vain."""
        ahead = self._read_ahead.jobs(self._executor.ended, time.monotonic())
        # Not for every slot that becomes free: claims of several jobs cost hardly more than claims of one
        enough = max(1, ahead // 2)
        self._executor.room_below = self._slots + ahead - enough + 1
        self._executor.room.clear()
        room = self._slots + ahead - len(self._executor.held)
        if self.stopping:  # its own wake-up may be what was just cleared
            return 0
        if room >= enough and self._finisher.backlog < MAX_BACKLOG:
            return room
        if not self._executor.room.wait(STALLED):
            self._give_back_stalled()
        return 0

    def _wait_until_idle(self) -> None:
        while not self.stopping and (self._executor.held or self._finisher.backlog):
            self._executor.room_below = 1
            self._executor.room.clear()
            if self._executor.held and not self.stopping:
                self._executor.room.wait(STALLED)
            else:
                self._stopping.wait(0.005)

    def _claim(self, limit: int) -> int | None:
        """Claim and hand over to the slots: how many; None after a failure."""
        lease_until = time.monotonic() + self._lease
        claimed: list[Claimed] = []
        try:
            with Session(self._engine) as session, session.begin():
                JobRepository(session).release(self._returning)
                claimed = JobRepository(session).claim(
                    worker=self._scope.worker, limit=limit, kinds=self._scope.kinds, tenants=self._scope.tenants
                )
        except DATABASE_TROUBLE as error:
            # If this was the commit, then the server may have done it all the same
            self._returning += [job.token for job in claimed]
            self._stopping.wait(self._outage.failed(error))
            return None
        self._returning = []
        self._outage.over()
        if claimed:
            self._executor.accept([self._make_attempt(job, lease_until) for job in claimed])
        return len(claimed)

    def _give_back_stalled(self) -> None:
        """Jobs turned slow while some were held beyond the slots: others may have room for those."""
        if len(self._executor.held) > self._slots:
            self._read_ahead.reset(self._executor.ended, time.monotonic())
            self._returning += [attempt.claimed.token for attempt in self._executor.withdraw()]
            self._release()

    def _give_back(self) -> None:
        self._returning += [attempt.claimed.token for attempt in self._executor.withdraw()]
        while self._returning and (pause := self._release()):
            if time.monotonic() > self._give_up_at:
                logger.warning("%d claims were not given back; they are left to recovery", len(self._returning))
                return
            time.sleep(min(pause, 0.2))

    def _release(self) -> float:
        """Give back what is to be given back: 0, or the seconds to wait before the next try."""
        try:
            with Session(self._engine) as session, session.begin():
                JobRepository(session).release(self._returning)
        except DATABASE_TROUBLE as error:
            return self._outage.failed(error)
        self._returning = []
        return 0.0
