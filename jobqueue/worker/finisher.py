"""The finisher: writes outcomes in batches, and does not let go of one until it is written or lost."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Final
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.orm import Session

from jobqueue.failure import FALLBACK, failure_summary
from jobqueue.repository import JobRepository, Outcome
from jobqueue.repository.attempts import already_ended
from jobqueue.worker.service import Outage, Service

logger = logging.getLogger("jobqueue.worker")

MAX_BATCH: Final = 1000
LINGER: Final = 0.003
"""How long, in seconds, the finisher gathers outcomes before it writes them."""


class Finisher(Service):
    """Takes outcomes from the slots and writes them.

    A failed write is repeated: the fencing token sees to it that it counts once, or not at all if the claim was
    lost meanwhile.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__("finisher")
        self._engine = engine
        self._outcomes: SimpleQueue[Outcome | None] = SimpleQueue()
        self._tracking = threading.Lock()
        self._unwritten: set[Outcome] = set()
        self._outage = Outage("writing outcomes")
        self._give_up_at = float("inf")

    def put(self, outcome: Outcome) -> None:
        with self._tracking:
            self._unwritten.add(outcome)
        self._outcomes.put(outcome)

    @property
    def backlog(self) -> int:
        """How many outcomes are not written yet."""
        return len(self._unwritten)

    def unwritten(self) -> set[UUID]:
        """The jobs whose outcomes are not written yet."""
        with self._tracking:
            return {outcome.token.id for outcome in self._unwritten}

    def stop(self, grace: float = 5.0) -> None:
        """Write what is there, for up to ``grace`` seconds if the database does not answer, then end."""
        self._give_up_at = time.monotonic() + grace
        super().stop()
        self._outcomes.put(None)

    def run(self) -> None:
        while (first := self._outcomes.get()) is not None:
            batch = self._gather(first)
            self._write(batch)
            with self._tracking:
                self._unwritten.difference_update(batch)

    def _gather(self, first: Outcome) -> list[Outcome]:
        batch = [first]
        until = time.monotonic() + LINGER
        while len(batch) < MAX_BATCH:
            try:
                outcome = self._outcomes.get(timeout=max(0.0, until - time.monotonic()))
            except Empty:
                break
            if outcome is None:  # stop was asked for: write these, then see it again
                self._outcomes.put(None)
                break
            batch.append(outcome)
        return batch

    def _write(self, batch: list[Outcome]) -> None:
        unsure = False
        while not self._try(batch, unsure):
            unsure = True
            if time.monotonic() > self._give_up_at:
                logger.error("%d outcomes were not written; their claims are left to recovery", len(batch))
                return

    def _try(self, batch: list[Outcome], unsure: bool) -> bool:
        """Write once; whether the batch is settled. ``unsure``: an earlier try may have been committed."""
        try:
            with Session(self._engine) as session, session.begin():
                written = {ended.id for ended in JobRepository(session).finish(batch)}
                missing = [outcome.token for outcome in batch if outcome.token.id not in written]
                known = already_ended(session, missing) if missing and unsure else set()
        except (DataError, IntegrityError) as error:
            self._isolate(batch, error)
            return True
        except Exception as error:
            self._pause(self._outage.failed(error))
            return False
        self._outage.over()
        for token in missing:
            if token.id not in known:
                logger.warning("job %s: the claim was lost before its outcome was written; it is dropped", token.id)
        return True

    def _isolate(self, batch: list[Outcome], error: Exception) -> None:
        """One outcome that the database refuses must not hold up the others, nor its own job for ever."""
        if len(batch) > 1:
            for outcome in batch:
                self._write([outcome])
        elif batch[0].error not in (None, FALLBACK):
            self._write([replace(batch[0], error=FALLBACK)])
        else:
            logger.error("job %s: its outcome was refused: %s", batch[0].token.id, failure_summary(error))

    def _pause(self, seconds: float) -> None:
        if self.stopping:
            time.sleep(min(seconds, 0.2))
        else:
            self._stopping.wait(seconds)
