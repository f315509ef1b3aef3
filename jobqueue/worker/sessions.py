"""``job.session``: a session that the worker lends to a handler, and commits itself."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import Any, Final

from sqlalchemy import Connection, PoolProxiedConnection, event
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.orm import Session, SessionTransaction

from jobqueue.errors import ClaimLost, HandlerError, SessionCommitted
from jobqueue.repository import JobRepository, Outcome

_IN_FAILED_TRANSACTION: Final = "25P02"

_COMMITTED: Final = (
    "job.session is committed by the worker, together with the job's outcome, when the handler returns; for what must "
    "be committed earlier, use job.separate_session() or a session of your own"
)


class AttemptSession(Session):
    """While it is lent, it cannot be committed or closed: both are the worker's, together with the outcome."""

    lent = True
    _over = False
    _lent_connection: PoolProxiedConnection | None = None
    """That of its transaction, while there is one."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._cutting = threading.Lock()

    def commit(self) -> None:
        if self.lent:
            raise SessionCommitted(_COMMITTED)
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

    def take_back(self) -> None:
        """The handler has ended: from now on the session is the worker's."""
        self.lent = False
        with self._cutting:
            self._lent_connection = None

    def cut_off(self) -> None:
        """Break the connection, from another thread: the attempt is over, but its handler cannot be stopped.

        The server then rolls back and lets go of what the transaction has locked, and the pool has room again.
        """
        with self._cutting:
            self._over = True
            connection, self._lent_connection = self._lent_connection, None
        if connection is not None:
            with contextlib.suppress(Exception):  # the handler's thread may be closing it at this moment
                _hang_up(connection)
                connection.detach()


def _hang_up(connection: PoolProxiedConnection) -> None:
    """At the socket, which any thread may do; the driver's connection belongs to the thread that uses it."""
    wire: Any = connection.driver_connection
    with socket.socket(fileno=os.dup(wire.fileno())) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)


@event.listens_for(AttemptSession, "after_begin")
def _note_connection(session: AttemptSession, transaction: SessionTransaction, connection: Connection) -> None:
    if session._over:
        raise ClaimLost("the attempt is over: it timed out, or its claim was lost; job.session is closed")
    session._lent_connection = connection.connection


@event.listens_for(AttemptSession, "after_transaction_end")
def _forget_connection(session: AttemptSession, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        session._lent_connection = None


@event.listens_for(AttemptSession, "before_commit")
def _refuse_commit(session: AttemptSession) -> None:
    """Also where ``commit`` is not called: ``job.session.get_transaction().commit()``."""
    if session.lent and not session.in_nested_transaction():
        raise SessionCommitted(_COMMITTED)


def commit_outcome(session: Session, outcome: Outcome) -> None:
    """Write the outcome in the session's own transaction and commit both.

    :raises ClaimLost: the attempt does not hold its job any more; nothing was committed.
    :raises HandlerError: the handler left the transaction in a failed state; nothing was committed.
    """
    assert isinstance(session, AttemptSession)
    session.take_back()
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
    session.take_back()
    try:
        session.close()
    except Exception:
        with contextlib.suppress(Exception):
            session.invalidate()
