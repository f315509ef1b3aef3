"""What the parts of a worker have in common: a loop in a thread, and patience with the database."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

import psycopg
from sqlalchemy.exc import SQLAlchemyError
from tenacity import RetryCallState, Retrying, wait_random_exponential

from jobqueue.failure import failure_summary, failure_text

logger = logging.getLogger("jobqueue.worker")

DATABASE_TROUBLE: Final = (SQLAlchemyError, psycopg.Error, OSError)
"""What a loop outlives. Anything else is a defect of jobqueue, and ends the worker with a clear word."""


REPEAT: Final = 60.0
"""After so many seconds of the same trouble it is said again."""


class Service(ABC):
    """A loop in a thread of its own, with one life: ``start``, ``stop``, ``join``.

    The thread is a daemon: a loop that hangs in the database cannot keep a stopping process alive.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.crashed: BaseException | None = None
        self.on_end: Callable[[], None] = lambda: None
        """Called when the loop has ended, for whatever reason."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._main, name=f"jobqueue-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the loop to end; returns at once."""
        self._stopping.set()

    def join(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the loop to end; whether it did."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout))
        return not self._thread.is_alive()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    @abstractmethod
    def run(self) -> None:
        """The loop; returns soon after ``stop``."""

    def _main(self) -> None:
        try:
            self.run()
        except BaseException as error:
            # A defect of jobqueue itself: the worker sees it and stops, rather than go on without this part
            self.crashed = error
            logger.critical("the %s ended by a defect: %s", self.name, failure_text(error))
        finally:
            self.on_end()


class Outage:
    """One stretch of failing database calls: how long to wait between them, and what to say (not each time)."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._failures = 0
        self._said = ""
        self._said_at = 0.0

    def failed(self, error: Exception) -> float:
        """Note a failure; the seconds to wait before the next try."""
        self._failures += 1
        summary = failure_summary(error)
        now = time.monotonic()
        if summary != self._said or now - self._said_at > REPEAT:
            self._said, self._said_at = summary, now
            logger.warning("%s failed, trying again until it works: %s", self._what, summary)
        state = RetryCallState(_RETRYING, fn=None, args=(), kwargs={})
        state.attempt_number = self._failures
        return _WAIT(state)

    def over(self) -> None:
        """Note a success."""
        if self._failures:
            logger.warning("%s works again after %d failures", self._what, self._failures)
            self._failures = 0
            self._said = ""


_RETRYING: Final = Retrying()
_WAIT: Final = wait_random_exponential(multiplier=0.1, exp_base=2, min=0.05, max=5)
