"""The session that an application hands over, whatever it wraps it in."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from jobqueue.errors import InvalidJob

AnySession = Session | scoped_session[Session]
AnyAsyncSession = AsyncSession | async_scoped_session[AsyncSession]


def plain(session: AnySession) -> Session:
    """The session itself, also behind a ``scoped_session`` such as Flask-SQLAlchemy's ``db.session``.

    :raises InvalidJob: for an async session, with what to call instead.
    """
    found: object = session() if isinstance(session, scoped_session) else session
    if isinstance(found, Session):
        return found
    remedy = "pass a Session"
    if isinstance(found, AsyncSession | async_scoped_session):
        remedy = "call the function whose name begins with an a, or `await session.run_sync(...)`"
    raise InvalidJob(f"session must be a SQLAlchemy Session, got {type(found).__name__}; {remedy}")


def plain_async(session: AnyAsyncSession) -> AsyncSession:
    """:func:`plain` for async sessions.

    :raises InvalidJob: for a session that is not async.
    """
    found: object = session() if isinstance(session, async_scoped_session) else session
    if isinstance(found, AsyncSession):
        return found
    raise InvalidJob(
        f"session must be an AsyncSession, got {type(found).__name__}; for a Session call the function without the a"
    )
