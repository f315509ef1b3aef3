"""The reaper: recovers the jobs of workers that were lost, and forgets those workers."""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import timedelta
from typing import Final

from sqlalchemy.orm import Session

from jobqueue.repository import JobRepository, Recovered
from jobqueue.repository.workers import forget_dead
from jobqueue.states import JobStatus

logger = logging.getLogger("jobqueue.reaper")

BATCH: Final = 500
FORGET_AFTER: Final = timedelta(days=1)


class Reaper:
    """Any worker's reaper recovers the stale jobs of all workers. ``unaudited``: kinds without ``job_dlq`` rows."""

    def __init__(self, stale_after: timedelta, unaudited: Collection[str] = ()) -> None:
        self._stale_after = stale_after
        self._unaudited = unaudited

    def sweep(self, session: Session) -> int:
        """Recover one batch in the session's transaction; how many. A full batch means there may be more."""
        recovered = JobRepository(session).recover_stale(self._stale_after, limit=BATCH, unaudited=self._unaudited)
        for job in recovered:
            _say(job)
        return len(recovered)

    def forget(self, session: Session) -> None:
        """Remove the rows of workers that have not been seen for a day."""
        forget_dead(session, FORGET_AFTER)


def _say(job: Recovered) -> None:
    level = logging.ERROR if job.status is JobStatus.DLQ else logging.WARNING
    logger.log(
        level,
        "job %s (%s) was recovered from the lost worker %s after attempt %d: %s",
        job.id,
        job.kind,
        job.worker,
        job.attempts,
        job.status.value,
    )
