"""When to try a failed job again: a tenacity wait strategy and a tenacity retry predicate, bounded.

A strategy is asked with the number of the attempt that failed and its exception, as tenacity would ask it:
``wait_exponential(multiplier=1, exp_base=2)`` gives 1 s, 2 s, 4 s, ... Strategies compose with ``+``.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from tenacity import Future, RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from jobqueue.failure import failure_summary

if TYPE_CHECKING:
    from tenacity.retry import RetryBaseT
    from tenacity.wait import WaitBaseT

logger = logging.getLogger(__name__)

MAX_DELAY: Final = timedelta(days=30)
"""No wait strategy delays a job for longer than this."""

DEFAULT_WAIT: Final[WaitBaseT] = wait_random_exponential(multiplier=10, exp_base=2, min=1, max=3600)
"""Between 1 s and 10 s after the first failure, then up to 20 s, 40 s, ... and never above an hour.

The whole interval is random ("full jitter"), so that jobs that failed together do not come back together.
"""

ALWAYS: Final[RetryBaseT] = retry_if_exception(lambda _: True)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What happens after a failure, before the attempts are used up.

    ``wait``: a tenacity wait strategy, in seconds. ``retry``: a tenacity retry predicate; an exception that it
    does not match sends the job to ``dlq`` at once.
    """

    wait: WaitBaseT = DEFAULT_WAIT
    retry: RetryBaseT = ALWAYS

    def delay(self, attempt: int, error: BaseException) -> timedelta:
        """The time until the next attempt: from 0 to ``MAX_DELAY``.

        Never raises: a strategy that raises, or gives something other than a number of seconds of at least 0,
        is logged, and the default strategy decides.
        """
        state = _state(attempt, error)
        try:
            return _bounded(self.wait(state))
        except Exception as fault:
            # No traceback: the error of the job is in it, and that may hold what is no business of a log's reader
            logger.error(
                "the wait strategy %r failed at attempt %d, using the default: %s",
                self.wait,
                attempt,
                failure_summary(fault),
            )
            return _bounded(DEFAULT_WAIT(state))

    def wants(self, attempt: int, error: BaseException) -> bool:
        """Whether ``error`` is to be tried again. A predicate that itself fails is logged and counts as yes."""
        try:
            return bool(self.retry(_state(attempt, error)))
        except Exception as fault:
            logger.error(
                "the retry predicate %r failed at attempt %d, trying again: %s",
                self.retry,
                attempt,
                failure_summary(fault),
            )
            return True


def _state(attempt: int, error: BaseException) -> RetryCallState:
    state = RetryCallState(_RETRYING, fn=None, args=(), kwargs={})
    state.attempt_number = attempt
    state.outcome = Future(attempt)
    state.outcome.set_exception(error)
    return state


_RETRYING: Final = Retrying()


def _bounded(seconds: Any) -> timedelta:
    """``seconds`` as a delay. Infinity is refused: it is an overflow, not a wish to wait for ``MAX_DELAY``."""
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"a wait strategy must give seconds, got {type(seconds).__name__}")
    if math.isnan(seconds) or math.isinf(seconds) or seconds < 0:
        raise ValueError(f"a wait strategy must give a finite number of seconds of at least 0, got {seconds!r}")
    return timedelta(seconds=min(seconds, MAX_DELAY.total_seconds()))
