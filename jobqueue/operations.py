"""Replay, discard and cancel as operators ask for them: one job or many, with a look before.

Each writes its audit rows in the same transaction. Async callers use ``await session.run_sync(replay, ...)``.
"""

from __future__ import annotations

from uuid import UUID

from jobqueue.repository import Changed, JobRepository, Which
from jobqueue.sessions import AnySession


def replay(session: AnySession, which: Which, *, actor: str) -> Changed:
    """Return failed or dead jobs to pending, due now, with a fresh budget of attempts; ``last_error`` stays.

    ``which`` is an id, several ids, or a ``JobFilter``. For one id a refusal is raised; for several, the result
    has the reason of each, and the others are replayed.

    :raises JobNotFound: the one job does not exist.
    :raises TransitionRefused: the one job is neither failed nor dead; or, as ``DedupKeyTaken``, another job has
        its ``dedup_key`` now.
    """
    return _raise_for_one(which, JobRepository(session).replay(which, actor=actor))


def discard(session: AnySession, which: Which, *, actor: str) -> Changed:
    """Delete failed or dead jobs for good; ``which`` and errors as for :func:`replay`."""
    return _raise_for_one(which, JobRepository(session).discard(which, actor=actor))


def cancel(session: AnySession, which: Which, *, actor: str, reason: str | None = None) -> Changed:
    """Stop pending jobs before they run; they end in failed. ``which`` and errors as for :func:`replay`."""
    return _raise_for_one(which, JobRepository(session).cancel(which, actor=actor, reason=reason))


def _raise_for_one(which: Which, changed: Changed) -> Changed:
    if isinstance(which, UUID) and changed.refused:
        raise changed.refused[which]
    return changed
