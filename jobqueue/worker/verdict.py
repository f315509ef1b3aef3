"""What an attempt ends in, from what its handler raised. The one place where outcomes are decided."""

from __future__ import annotations

import logging

from jobqueue.failure import clean, failure_summary, failure_text
from jobqueue.handlers import DeadLetter, Handler, Snooze, Stop
from jobqueue.models.checks import check_delay
from jobqueue.repository import Claimed, Outcome
from jobqueue.states import Transition

logger = logging.getLogger("jobqueue.worker")


def done(claimed: Claimed, handler: Handler[object]) -> Outcome:
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("job %s (%s) is done at attempt %d", claimed.id, claimed.kind, claimed.attempt)
    return Outcome(claimed.token, Transition.DONE, audit=handler.audit)


def verdict(claimed: Claimed, handler: Handler[object], error: BaseException) -> Outcome:
    """The outcome of an attempt that ended in ``error``; also says it in the log, without payload or parameters."""
    match error:
        case Snooze():
            logger.debug("job %s (%s) snoozes for %s", claimed.id, claimed.kind, error.delay)
            return Outcome(claimed.token, Transition.SNOOZE, delay=check_delay(error.delay))
        case Stop():
            return _ended(claimed, handler, Transition.FAILED, f"stopped: {error.reason}")
        case DeadLetter():
            return _ended(claimed, handler, Transition.DLQ, error.reason)
    if not handler.policy.wants(claimed.attempt, error):
        return _ended(claimed, handler, Transition.DLQ, failure_text(error), failure_summary(error))
    delay = handler.policy.delay(claimed.attempt, error)
    last = claimed.attempt >= claimed.max_attempts
    logger.log(
        logging.ERROR if last else logging.WARNING,
        "job %s (%s) failed at attempt %d of %d, %s: %s",
        claimed.id,
        claimed.kind,
        claimed.attempt,
        claimed.max_attempts,
        "goes to dlq" if last else f"next in {delay.total_seconds():.1f} s",
        failure_summary(error),
    )
    # A retry also for the last: max_attempts may have changed since the claim, and the database decides
    return Outcome(claimed.token, Transition.RETRY, failure_text(error), delay, handler.audit)


def exhausted(claimed: Claimed, handler: Handler[object]) -> Outcome:
    reason = (
        f"no attempts left: this would be attempt {claimed.attempt} of {claimed.max_attempts}; "
        "replay it for a fresh budget"
    )
    return _ended(claimed, handler, Transition.DLQ, reason)


def _ended(
    claimed: Claimed, handler: Handler[object], verb: Transition, text: str, summary: str | None = None
) -> Outcome:
    cleaned = clean(text)
    _log_end(claimed, verb, summary or cleaned)
    return Outcome(claimed.token, verb, cleaned, audit=handler.audit)


def _log_end(claimed: Claimed, verb: Transition, summary: str) -> None:
    level = logging.ERROR if verb is Transition.DLQ else logging.WARNING
    logger.log(level, "job %s (%s) ends in %s: %s", claimed.id, claimed.kind, verb.value, summary)
