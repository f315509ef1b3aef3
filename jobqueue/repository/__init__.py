"""All SQL that changes a job, and the reads of the command line."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from uuid import UUID

from jobqueue.repository import attempts, claim, recovery, transitions
from jobqueue.repository.claim import Claimed
from jobqueue.repository.recovery import Recovered
from jobqueue.repository.selection import JobFilter, Which
from jobqueue.repository.tokens import Ended, Outcome, Renewal, Token
from jobqueue.repository.transitions import Changed
from jobqueue.sessions import AnySession, plain

__all__ = [
    "Changed",
    "Claimed",
    "Ended",
    "JobFilter",
    "JobRepository",
    "Outcome",
    "Recovered",
    "Renewal",
    "Token",
    "Which",
]


class JobRepository:
    """Every transition of a job, as one guarded statement each, in the session's own transaction.

    It never commits and never rolls back. The statements expect READ COMMITTED, PostgreSQL's default.
    Async callers use ``await session.run_sync(lambda s: JobRepository(s).claim(...))``.
    """

    def __init__(self, session: AnySession) -> None:
        self._session = plain(session)

    def claim(
        self,
        *,
        worker: str,
        limit: int = 1,
        kinds: Collection[str] | None = None,
        tenants: Collection[UUID] | None = None,
    ) -> list[Claimed]:
        """Take up to ``limit`` due jobs for ``worker``: by priority, then by ``available_at``.

        ``kinds`` and ``tenants`` limit what is taken; None means all. Each claim counts as an attempt.
        """
        return claim.claim(self._session, worker=worker, limit=limit, kinds=kinds, tenants=tenants)

    def finish(self, outcomes: Sequence[Outcome]) -> list[Ended]:
        """End attempts. What is missing from the result had lost its claim, and was not changed."""
        return attempts.finish(self._session, outcomes)

    def renew(self, tokens: Collection[Token]) -> Renewal:
        """Move ``claimed_at`` of running attempts to now."""
        return attempts.renew(self._session, tokens)

    def release(self, tokens: Collection[Token]) -> list[UUID]:
        """Return claimed jobs that have not begun to pending, with their attempt given back."""
        return attempts.release(self._session, tokens)

    def recover_stale(
        self, stale_after: timedelta, *, limit: int = 1000, unaudited: Collection[str] = ()
    ) -> list[Recovered]:
        """Return jobs whose claim was not renewed for ``stale_after``: to pending, or to dlq with no attempts left.

        A job that goes to dlq gets an audit row, unless its kind is among ``unaudited``.
        """
        return recovery.recover_stale(self._session, stale_after, limit=limit, unaudited=unaudited)

    def cancel(self, which: Which, *, actor: str, reason: str | None = None) -> Changed:
        """Stop pending jobs before they run: they end in failed. ``which``: an id, several, or a ``JobFilter``."""
        return transitions.cancel(self._session, which, actor=actor, reason=reason)

    def replay(self, which: Which, *, actor: str) -> Changed:
        """Return failed or dead jobs to pending, due now, with a fresh budget of attempts. Keeps ``last_error``."""
        return transitions.replay(self._session, which, actor=actor)

    def discard(self, which: Which, *, actor: str) -> Changed:
        """Delete failed or dead jobs for good. What remains is the audit row."""
        return transitions.discard(self._session, which, actor=actor)
