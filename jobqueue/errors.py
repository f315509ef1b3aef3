"""Every exception of jobqueue. The docstring says what happened and what to do about it.

Errors about a value that was handed in are also ``ValueError``; they are raised before any SQL is sent, so
the caller's transaction stays usable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID


class JobQueueError(Exception):
    """Base of all errors that jobqueue raises on purpose."""


class SettingsError(JobQueueError, ValueError):
    """A setting is missing or wrong. The message names the environment variable and what it takes."""


class InvalidJob(JobQueueError, ValueError):
    """A value given for a job cannot be stored as it is. Correct the value; nothing was sent to the database."""


class PayloadError(InvalidJob):
    """A payload cannot be carried as JSON without loss, or does not fit the handler's declared type.

    ``faults`` holds one ``(path, reason)`` per fault, the path written as in ``$.items[2].price``.
    """

    def __init__(self, faults: Iterable[tuple[str, str]]) -> None:
        self.faults: list[tuple[str, str]] = list(faults)
        super().__init__("payload: " + "; ".join(f"{path}: {reason}" for path, reason in self.faults))


class UnknownKind(InvalidJob):
    """The database's enum ``mdm.job_kind`` lacks a kind. Add it by an Alembic revision with ``op.add_job_kind``."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self.kinds = list(kinds)
        names = ", ".join(repr(kind) for kind in self.kinds)
        calls = "; ".join(f'op.add_job_kind("{kind}")' for kind in self.kinds)
        super().__init__(
            f"the database does not know the job kind {names}; write an Alembic revision whose upgrade() calls "
            f"{calls}, and apply it (a bundled kind: `jobqueue db upgrade`)"
        )


class UnknownTenant(JobQueueError, ValueError):
    """The tenant of a job has no row in the tenants table. Add the tenant first; roll the transaction back."""


class EnqueueConflict(JobQueueError):
    """A key was taken and given back by other transactions each time it was tried. Try the transaction again."""


class HandlerError(JobQueueError):
    """Handlers are registered in a way that cannot work. The message says which one and how to register it."""


class JobNotFound(JobQueueError, LookupError):
    """No job has this id: it was discarded or purged, or it never was committed."""

    def __init__(self, job_id: UUID) -> None:
        self.job_id = job_id
        super().__init__(f"no job {job_id}: it was discarded or purged, or its transaction was rolled back")


class TransitionRefused(JobQueueError):
    """A job is not in a state from which it can be replayed, discarded or cancelled. Nothing was changed."""


class DedupKeyTaken(TransitionRefused):
    """A job cannot go back to pending: another pending or running job has its ``dedup_key`` now.

    Wait for that job, or cancel it, and replay again.
    """

    def __init__(self, job_id: UUID, dedup_key: str, holder: UUID | None) -> None:
        self.job_id = job_id
        self.dedup_key = dedup_key
        self.holder = holder
        by = f"job {holder}" if holder else "another job"
        super().__init__(
            f"job {job_id} was not replayed: its dedup_key is in use by {by}; wait for that job or cancel it"
        )


class ClaimLost(JobQueueError):
    """The attempt no longer holds its job: it was recovered, cancelled or taken over meanwhile.

    Whatever the attempt wanted to write about the job was dropped; the attempt that holds the claim decides.
    """


class SessionCommitted(JobQueueError):
    """A handler tried to commit ``job.session``. The worker commits it, together with the job's outcome.

    Return from the handler instead; use a session of your own for what must be committed earlier.
    """


class SchemaOutOfDate(JobQueueError):
    """The database's schema does not fit this version of jobqueue. The message holds the command that mends it."""


class DatabaseUnavailable(JobQueueError):
    """The database cannot be reached. The message says which server was tried, without its password."""


class MailError(JobQueueError):
    """A mail cannot be built or was not accepted. The message never holds the mail's text."""
