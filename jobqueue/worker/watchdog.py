"""The watchdog: ends the say of attempts whose time is up, by their limit or because their claim ran out."""

from __future__ import annotations

import logging
import time
from datetime import timedelta

from jobqueue.worker.executor import Executor
from jobqueue.worker.service import Service

logger = logging.getLogger("jobqueue.worker")


class Watchdog(Service):
    """Looks at the held attempts every so often. It needs no database, and so works while that is away."""

    def __init__(self, executor: Executor, every: timedelta) -> None:
        super().__init__("watchdog")
        self._executor = executor
        self._every = every.total_seconds()

    def run(self) -> None:
        while not self._stopping.wait(self._every):
            now = time.monotonic()
            for attempt in self._executor.held.copy():
                if attempt.deadline is not None and now >= attempt.deadline:
                    self._executor.give_up(attempt, attempt.timed_out)
                elif now >= attempt.lease_until and self._executor.give_up(attempt, lambda: None):
                    logger.warning(
                        "job %s: its claim could not be renewed in time and has run out; its outcome will not count",
                        attempt.claimed.id,
                    )
