"""What names an attempt, and what an attempt ends in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from jobqueue.states import JobStatus, Transition

ENDS: Final = frozenset({Transition.DONE, Transition.RETRY, Transition.SNOOZE, Transition.FAILED, Transition.DLQ})


@dataclass(frozen=True, slots=True)
class Token:
    """The fencing token of an attempt: whoever holds it may end, renew or release that attempt, nobody else.

    ``started_at`` is the database's clock at the claim; it never repeats for a job, whatever the clock does.
    """

    id: UUID
    worker: str
    started_at: datetime


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What an attempt ends in: done, retry, snooze, failed or dlq.

    A retry becomes dlq when the job's attempts are used up. ``delay`` counts for retry and snooze, by the
    database's clock. ``error`` is stored as ``last_error``; it must have passed ``failure.clean``.
    ``audit`` asks for an audit row if the job ends in one of these statuses. Each outcome is only equal to itself.
    """

    token: Token
    verb: Transition
    error: str | None = None
    delay: timedelta = timedelta(0)
    audit: frozenset[JobStatus] = frozenset({JobStatus.DLQ})

    def __post_init__(self) -> None:
        if self.verb not in ENDS:
            raise ValueError(f"an attempt cannot end in {self.verb!r}; use one of {sorted(ENDS)}")


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt whose outcome was written, and the status that the job has now."""

    id: UUID
    status: JobStatus


@dataclass(frozen=True, slots=True)
class Renewal:
    """What came of a renewal. An attempt in neither set still holds its claim, but its row is locked just now."""

    renewed: frozenset[UUID]
    lost: frozenset[UUID]
