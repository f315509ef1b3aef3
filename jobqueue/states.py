"""The state machine of a job, held once: repository, CHECK constraints, docs and tests follow this table."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class JobStatus(StrEnum):
    """The labels of ``mdm.job_status``, in the order of the enum type."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    DLQ = "dlq"


class JobKind(StrEnum):
    """The kinds that ship with jobqueue. An application adds its own by revision, and names them by string."""

    EMAIL_SEND = "email_send"
    BULK_IMPORT = "bulk_import"
    REINDEX = "reindex"
    OUTBOX_DISPATCH = "outbox_dispatch"
    CLEANUP_JOBS = "cleanup_jobs"
    VIRUS_SCAN = "virus_scan"
    INDEX_SYNC = "index_sync"
    GIN_BACKFILL = "gin_backfill"


class Transition(StrEnum):
    """The verbs that change a job's status. The ends of an attempt are named after what it ends in."""

    CLAIM = "claim"
    DONE = "done"
    RETRY = "retry"
    SNOOZE = "snooze"
    RELEASE = "release"
    FAILED = "failed"
    DLQ = "dlq"
    RECOVER = "recover"
    CANCEL = "cancel"
    REPLAY = "replay"


# verb -> (from, to); a verb not possible from a status changes nothing
TRANSITIONS: Final[dict[Transition, frozenset[tuple[JobStatus, JobStatus]]]] = {
    Transition.CLAIM: frozenset({(JobStatus.PENDING, JobStatus.RUNNING)}),
    Transition.DONE: frozenset({(JobStatus.RUNNING, JobStatus.DONE)}),
    # With no attempts left, a retry ends in dlq
    Transition.RETRY: frozenset({(JobStatus.RUNNING, JobStatus.PENDING), (JobStatus.RUNNING, JobStatus.DLQ)}),
    Transition.SNOOZE: frozenset({(JobStatus.RUNNING, JobStatus.PENDING)}),
    Transition.RELEASE: frozenset({(JobStatus.RUNNING, JobStatus.PENDING)}),
    Transition.FAILED: frozenset({(JobStatus.RUNNING, JobStatus.FAILED)}),
    Transition.DLQ: frozenset({(JobStatus.RUNNING, JobStatus.DLQ)}),
    Transition.RECOVER: frozenset({(JobStatus.RUNNING, JobStatus.PENDING), (JobStatus.RUNNING, JobStatus.DLQ)}),
    Transition.CANCEL: frozenset({(JobStatus.PENDING, JobStatus.FAILED)}),
    Transition.REPLAY: frozenset({(JobStatus.FAILED, JobStatus.PENDING), (JobStatus.DLQ, JobStatus.PENDING)}),
}

ENDED: Final = frozenset({JobStatus.DONE, JobStatus.FAILED, JobStatus.DLQ})
"""No attempt is coming; ``completed_at`` is set."""

DISCARDABLE: Final = frozenset({JobStatus.FAILED, JobStatus.DLQ})
"""The statuses in which a job may be discarded, that is, deleted. A pending job is cancelled first."""

ACTIVE: Final = frozenset({JobStatus.PENDING, JobStatus.RUNNING})
"""A ``dedup_key`` is unique among these."""


def sources(verb: Transition) -> frozenset[JobStatus]:
    """The statuses from which ``verb`` is possible."""
    return frozenset(source for source, _ in TRANSITIONS[verb])
