"""The finisher: writes outcomes in batches, and does not let go of one until it is written or lost."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Final

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from jobqueue.failure import FALLBACK, failure_summary
from jobqueue.repository import Ended, Outcome
from jobqueue.repository.attempts import already_ended, finish, still_held
from jobqueue.worker.service import DATABASE_TROUBLE, Outage, Service

logger = logging.getLogger("jobqueue.worker")

MAX_BATCH: Final = 1000
LINGER: Final = 0.003
"""How long, in seconds, the finisher gathers outcomes before it writes them."""

LOCKED: Final = 0.02
"""The seconds after which outcomes whose rows were locked are tried again."""


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

    def stop(self, grace: float = 5.0) -> None:
        """Write what is there, for up to ``grace`` seconds if the database does not answer, then end."""
        self._give_up_at = time.monotonic() + grace
        super().stop()
        self._outcomes.put(None)

    def run(self) -> None:
        while (first := self._outcomes.get()) is not None or self._has_time_left():
            if first is None:
                self._outcomes.put(None)
                continue
            batch = self._gather(first)
            locked = self._write(batch)
            with self._tracking:
                self._unwritten.difference_update(batch)
                self._unwritten.update(locked)
            for outcome in locked:
                self._outcomes.put(outcome)
            if locked:
                time.sleep(LOCKED)
        if self._unwritten:
            logger.error("%d outcomes were not written; their claims are left to recovery", len(self._unwritten))

    def _has_time_left(self) -> bool:
        """Asked at the end: whether to wait for outcomes whose rows somebody has locked."""
        return bool(self._unwritten) and time.monotonic() < self._give_up_at

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

    def _write(self, batch: list[Outcome]) -> list[Outcome]:
        """Write, until the database takes it or time is up; returns those to be tried later: their rows are locked."""
        unsure = False
        while (locked := self._try(batch, unsure)) is None:
            unsure = True
            if time.monotonic() > self._give_up_at:
                logger.error("%d outcomes were not written; their claims are left to recovery", len(batch))
                return []
        return locked

    def _try(self, batch: list[Outcome], unsure: bool) -> list[Outcome] | None:
        """Write once: what is left because of locks; None after a failure.

        ``unsure``: an earlier try may have been committed.
        """
        try:
            with Session(self._engine) as session, session.begin():
                # Not waiting for locks: one row that somebody holds must not hold up the outcomes of all others
                ended = finish(session, batch, skip_locked=True)
                missing = [] if len(ended) == len(batch) else _without(batch, ended)
                tokens = [outcome.token for outcome in missing]
                held = still_held(session, tokens)
                known = already_ended(session, tokens) if unsure else set()
        except DATABASE_TROUBLE as error:
            if _is_about_the_rows(error):
                return self._isolate(batch, error)
            self._pause(self._outage.failed(error))
            return None
        self._outage.over()
        for token in tokens:
            if token.id not in held | known:
                logger.warning("job %s: its claim is gone (lost, or ended already); this outcome is dropped", token.id)
        return [outcome for outcome in missing if outcome.token.id in held]

    def _isolate(self, batch: list[Outcome], error: Exception) -> list[Outcome]:
        """One outcome that the database refuses must not hold up the others, nor its own job for ever."""
        if len(batch) > 1:
            return [locked for outcome in batch for locked in self._write([outcome])]
        if batch[0].error not in (None, FALLBACK):
            return self._write([replace(batch[0], error=FALLBACK)])
        logger.error("job %s: its outcome was refused: %s", batch[0].token.id, failure_summary(error))
        return []

    def _pause(self, seconds: float) -> None:
        if self.stopping:
            time.sleep(min(seconds, 0.2))
        else:
            self._stopping.wait(seconds)


def _without(batch: list[Outcome], ended: list[Ended]) -> list[Outcome]:
    written = {attempt.id for attempt in ended}
    return [outcome for outcome in batch if outcome.token.id not in written]


def _is_about_the_rows(error: Exception) -> bool:
    """Whether the database refuses a row, and not the statement or the moment: bad data, a constraint, a trigger."""
    state = getattr(getattr(error, "orig", None), "sqlstate", None) or ""
    return state[:2] in {"22", "23", "P0"}
