"""``job.session``: a session that the worker lends to a handler, and commits itself."""

from __future__ import annotations

import contextlib
from typing import Final

from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.orm import Session, SessionTransaction

from jobqueue.errors import ClaimLost, HandlerError, SessionCommitted
from jobqueue.repository import JobRepository, Outcome

_IN_FAILED_TRANSACTION: Final = "25P02"


class AttemptSession(Session):
    """While it is lent, it cannot be committed or closed: both are the worker's, together with the outcome."""

    lent = True

    def commit(self) -> None:
        if self.lent:
            raise SessionCommitted(
                "job.session is committed by the worker, together with the job's outcome, when the handler returns; "
                "for what must be committed earlier, use a session of your own"
            )
        super().commit()

    def begin(self, nested: bool = False) -> SessionTransaction:
        if self.lent and not nested:
            raise SessionCommitted(
                "job.session has begun its transaction already, and the worker commits it when the handler returns; "
                "use it as it is, or begin_nested() for a part that may fail"
            )
        return super().begin(nested)

    def close(self) -> None:
        # `with job.session as session:` would otherwise throw away what was written in the block
        if not self.lent:
            super().close()


def commit_outcome(session: Session, outcome: Outcome) -> None:
    """Write the outcome in the session's own transaction and commit both.

    :raises ClaimLost: the attempt does not hold its job any more; nothing was committed.
    :raises HandlerError: the handler left the transaction in a failed state; nothing was committed.
    """
    assert isinstance(session, AttemptSession)
    session.lent = False
    try:
        session.flush()
        ended = JobRepository(session).finish([outcome])
    except (DBAPIError, PendingRollbackError) as error:
        # The latter is how a session speaks of it that failed while it flushed
        if isinstance(error, PendingRollbackError) or getattr(error.orig, "sqlstate", None) == _IN_FAILED_TRANSACTION:
            raise HandlerError(
                "the handler went on after a database error in job.session, so that nothing of it can be committed; "
                "let the error out, or put what may fail into job.session.begin_nested()"
            ) from error
        raise
    if not ended:
        raise ClaimLost(f"job {outcome.token.id}: the claim was lost before the attempt ended; it is rolled back")
    session.commit()


def give_back(session: Session) -> None:
    """Roll back what was not committed, and return the connection. Never raises: it may be broken, or in use still
    by a thread that the handler left running."""
    assert isinstance(session, AttemptSession)
    session.lent = False
    try:
        session.close()
    except Exception:
        with contextlib.suppress(Exception):
            session.invalidate()
