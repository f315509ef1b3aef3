"""One attempt: a claimed job, its handler, and the one voice it has in what becomes of the job."""

from __future__ import annotations

import inspect
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from jobqueue.errors import ClaimLost, HandlerError, PayloadError
from jobqueue.handlers import DeadLetter, Handler, JobContext
from jobqueue.repository import Claimed, Outcome, Token
from jobqueue.worker.databases import Databases
from jobqueue.worker.sessions import AttemptSession, commit_outcome, give_back
from jobqueue.worker.verdict import done, exhausted, verdict

logger = logging.getLogger("jobqueue.worker")


class Attempt:
    """One run of a handler.

    It has one voice in what becomes of its job, used by whichever comes first: the handler's end, the time
    limit, or the loss of the claim. What comes later is dropped.
    """

    def __init__(self, claimed: Claimed, handler: Handler[Any], databases: Databases, lease_until: float) -> None:
        self.claimed = claimed
        self.handler = handler
        self.lease_until = lease_until
        """How long the claim is surely ours without a renewal, on the clock of ``time.monotonic()``."""
        self.deadline: float | None = None
        self.silenced = False
        self.thread: threading.Thread | None = None
        """Runs the handler, once it has begun and if it is not async."""
        self._voice = threading.Lock()
        self._spoken = False
        self._databases = databases
        self._session: AttemptSession | None = None
        self._async_session: AsyncSession | None = None

    def use_voice(self) -> bool:
        """Whether the caller is the one who decides what becomes of the job; only the first is."""
        with self._voice:
            spoken, self._spoken = self._spoken, True
        return not spoken

    def silence(self) -> bool:
        """Take the voice from the handler, which may run on without it; whether it had not been used yet."""
        # In one step with the voice: a handler that finds it used must see at once whether it was silenced
        with self._voice:
            if not self._spoken:
                self._spoken = self.silenced = True
                return True
        return False

    # --- the run: what is returned is the outcome still to be written, if any --------------------------------

    def run(self, default_timeout: timedelta) -> Outcome | None:
        try:
            if self.claimed.exhausted:
                return exhausted(self.claimed, self.handler) if self.use_voice() else None
            self._call(default_timeout)
            if not self.use_voice():
                return None
            outcome = done(self.claimed, self.handler)
            if self._session is None:
                return outcome
            commit_outcome(self._session, outcome)
        except BaseException as error:  # also SystemExit and KeyboardInterrupt: a handler's, not the worker's
            return self._failed(error)
        finally:
            if self._session is not None:
                give_back(self._session)
        return None

    async def run_async(self, default_timeout: timedelta) -> Outcome | None:
        try:
            if self.claimed.exhausted:
                return exhausted(self.claimed, self.handler) if self.use_voice() else None
            await self.handler(self._payload(), self._begin(default_timeout))
            if not self.use_voice():
                return None
            outcome = done(self.claimed, self.handler)
            if self._async_session is None:
                return outcome
            await self._async_session.run_sync(commit_outcome, outcome)
        except BaseException as error:  # here, inside the task: SystemExit would otherwise end the event loop
            return self._failed(error)
        finally:
            if self._async_session is not None:
                await self._async_session.run_sync(give_back)
        return None

    def _call(self, default_timeout: timedelta) -> None:
        process = os.getpid()
        try:
            result = self.handler(self._payload(), self._begin(default_timeout))
        finally:
            if os.getpid() != process:
                os._exit(0)  # a child that the handler forked must not speak for its parent, on the same connection
        if result is None:
            return
        if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
            if inspect.iscoroutine(result):
                result.close()
            raise HandlerError(
                f"the handler of {self.claimed.kind!r} returned a {type(result).__name__} that nobody runs; "
                "register the async function itself, or a wrapper that is async too"
            )

    def cut_off(self) -> None:
        """Take the connection from a handler that cannot be stopped. An async one is cancelled, and lets go itself."""
        if self._session is not None:
            self._session.cut_off()

    def timed_out(self) -> Outcome:
        """The outcome of an attempt that was silenced because its time is up."""
        return verdict(self.claimed, self.handler, TimeoutError("the attempt was stopped at its time limit"))

    def _failed(self, error: BaseException) -> Outcome | None:
        if isinstance(error, ClaimLost):
            logger.warning("%s", error)
            return None
        # The voice may be used already, by the success whose commit failed: this is then its second half
        if not self.use_voice() and self.silenced:
            return None
        try:
            return verdict(self.claimed, self.handler, error)
        except Exception as defect:  # a Snooze, Stop or DeadLetter of the handler's own, without what they need
            return verdict(self.claimed, self.handler, defect)

    def _payload(self) -> Any:
        try:
            return self.handler.payload_type.parse(self.claimed.payload_json)
        except PayloadError as error:
            raise DeadLetter(str(error)) from None

    def _begin(self, default_timeout: timedelta) -> JobContext:
        limit = default_timeout if self.handler.timeout is None else self.handler.timeout
        if limit:
            self.deadline = time.monotonic() + limit.total_seconds()
        claimed = self.claimed
        return JobContext(
            id=claimed.id,
            tenant_id=claimed.tenant_id,
            kind=claimed.kind,
            attempt=claimed.attempt,
            max_attempts=claimed.max_attempts,
            created_at=claimed.created_at,
            created_by=claimed.created_by,
            idempotency_key=claimed.idempotency_key,
            deadline=self.deadline,
            services=self,
        )

    # --- what the handler gets through its JobContext (handlers.AttemptServices) -----------------------------

    def cancelled(self) -> bool:
        return self.silenced

    def token(self) -> Token:
        return self.claimed.token

    def session(self) -> Session:
        if self.handler.is_async:
            raise HandlerError("job.session would block the event loop; an async handler uses job.async_session")
        if self._session is None:
            self._session = AttemptSession(self._databases.attempts)
            if self.silenced:
                self._session.cut_off()
        return self._session

    def async_session(self) -> AsyncSession:
        if not self.handler.is_async:
            raise HandlerError("job.async_session needs an event loop; a handler that is not async uses job.session")
        if self._async_session is None:
            self._async_session = AsyncSession(self._databases.async_attempts, sync_session_class=AttemptSession)
        return self._async_session

    @contextmanager
    def separate_session(self) -> Iterator[Session]:
        if self.handler.is_async:
            raise HandlerError("job.separate_session would block the event loop; use an async session of your own")
        with Session(self._databases.attempts) as session, session.begin():
            yield session
