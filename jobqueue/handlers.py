"""Handlers: the functions that do the work, what they get, and what they may raise."""

from __future__ import annotations

import functools
import inspect
import logging
import time
import typing
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Protocol, TypeVar
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tenacity.retry import RetryBaseT
from tenacity.wait import WaitBaseT

from jobqueue.enqueue import Enqueued, NewJob, enqueue_many
from jobqueue.errors import HandlerError, InvalidJob
from jobqueue.models.checks import check_column, check_delay
from jobqueue.payload import PayloadType
from jobqueue.repository import Token
from jobqueue.retry import ALWAYS, DEFAULT_WAIT, RetryPolicy
from jobqueue.sessions import AnyAsyncSession, AnySession, plain_async
from jobqueue.states import JobStatus

T = TypeVar("T")

logger = logging.getLogger("jobqueue.job")

DEFAULT_MAX_ATTEMPTS: Final = 8


class Snooze(Exception):
    """Raised by a handler: come back after ``delay``, without using up an attempt."""

    def __init__(self, delay: timedelta) -> None:
        self.delay = check_delay(delay)
        super().__init__(f"snoozed for {delay}")


class Stop(Exception):
    """Raised by a handler: end in ``failed``, on purpose. The job is kept for diagnosis and can be replayed."""

    def __init__(self, reason: str) -> None:
        self.reason = str(reason)
        super().__init__(self.reason)


class DeadLetter(Exception):
    """Raised by a handler: go to ``dlq`` at once, whatever attempts are left. Trying again would not help."""

    def __init__(self, reason: str) -> None:
        self.reason = str(reason)
        super().__init__(self.reason)


class AttemptServices(Protocol):
    """What the worker lends to an attempt."""

    def session(self) -> Session: ...

    def async_session(self) -> AsyncSession: ...

    def separate_session(self) -> AbstractContextManager[Session]: ...

    def cancelled(self) -> bool: ...

    def token(self) -> Token:
        """What names this attempt: for SQL that must only count while it holds its job."""
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class JobContext:
    """What a handler knows about its job, and the session that commits together with the job's outcome."""

    id: UUID
    tenant_id: UUID
    kind: str
    attempt: int
    """1 for the first. A job that was replayed starts again at 1."""
    max_attempts: int
    created_at: datetime
    created_by: str | None
    idempotency_key: str | None
    deadline: float | None
    """When the attempt times out, on the clock of ``time.monotonic()``; None for never."""
    services: AttemptServices

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry ``job_id``, ``job_kind``, ``tenant_id`` and ``attempt``."""
        extra = {"job_id": self.id, "job_kind": self.kind, "tenant_id": self.tenant_id, "attempt": self.attempt}
        return logging.LoggerAdapter(logger, extra)

    @property
    def session(self) -> Session:
        """A session of this attempt alone. Its first use opens a transaction at READ COMMITTED.

        When the handler returns, the worker writes the job's outcome in that transaction and commits: the
        handler's rows, the jobs it enqueued, and ``done``, or nothing. If the handler raises, all is rolled back.

        :raises HandlerError: in an async handler; use ``async_session`` there.
        """
        return self.services.session()

    @property
    def async_session(self) -> AsyncSession:
        """:attr:`session` for async handlers.

        :raises HandlerError: in a handler that is not async; use ``session`` there.
        """
        return self.services.async_session()

    def separate_session(self) -> AbstractContextManager[Session]:
        """A session whose transaction commits at the end of the ``with`` block, whatever becomes of the attempt.

        For what must be kept of an attempt that fails, such as a log of what the other side said.
        """
        return self.services.separate_session()

    @property
    def cancelled(self) -> bool:
        """The attempt is over although the handler still runs: it timed out, or its claim was lost.

        Nothing that the handler still does to the job will count. A long handler looks at this now and then.
        """
        return self.services.cancelled()

    @property
    def remaining(self) -> timedelta | None:
        """The time until the deadline, at least 0; None for no deadline."""
        return None if self.deadline is None else timedelta(seconds=max(0.0, self.deadline - time.monotonic()))


HandlerFunction = Callable[[T, JobContext], Any] | Callable[[T], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler(Generic[T]):
    """A function registered for a kind. Called like a function, it is the function."""

    kind: str
    function: Callable[..., Any]
    payload_type: PayloadType[T]
    is_async: bool
    takes_job: bool
    timeout: timedelta | None
    """None: the worker's setting; 0: no limit."""
    max_attempts: int
    policy: RetryPolicy
    audit: frozenset[JobStatus]
    check: Callable[[], None] | None

    def __call__(self, payload: T, job: JobContext | None = None) -> Any:
        return self.function(payload, job) if self.takes_job else self.function(payload)

    def new(self, payload: T | dict[str, Any] | None = None, *, tenant_id: UUID, **options: Any) -> NewJob:
        """A job for ``enqueue_many``, its payload checked against the handler's type. See ``NewJob`` for options.

        :raises PayloadError: with the path of each fault.
        """
        dumped = self.payload_type.dump({} if payload is None else payload)
        return NewJob(
            kind=self.kind,
            payload=dumped,
            tenant_id=tenant_id,
            **{"max_attempts": self.max_attempts} | options,
        )

    def enqueue(
        self, session: AnySession, payload: T | dict[str, Any] | None = None, *, tenant_id: UUID, **options: Any
    ) -> Enqueued:
        """Enqueue a job of this kind in the session's transaction, its payload checked against the handler's type.

        Options and errors are those of :func:`jobqueue.enqueue`; ``max_attempts`` is the handler's unless given.
        """
        return enqueue_many(session, [self.new(payload, tenant_id=tenant_id, **options)])[0]

    async def aenqueue(
        self,
        session: AnyAsyncSession,
        payload: T | dict[str, Any] | None = None,
        *,
        tenant_id: UUID,
        **options: Any,
    ) -> Enqueued:
        """:meth:`enqueue` for an async session."""
        job = self.new(payload, tenant_id=tenant_id, **options)
        return (await plain_async(session).run_sync(enqueue_many, [job]))[0]


class Handlers:
    """A registry of handlers by kind. ``jobqueue worker module:name`` runs it."""

    def __init__(self) -> None:
        self._by_kind: dict[str, Handler[Any]] = {}

    def register(
        self,
        kind: str,
        *,
        timeout: timedelta | None = None,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        wait: WaitBaseT = DEFAULT_WAIT,
        retry: RetryBaseT = ALWAYS,
        audit_done: bool = False,
        audit_dlq: bool = True,
        check: Callable[[], None] | None = None,
    ) -> Callable[[HandlerFunction[T]], Handler[T]]:
        """Register the decorated function, plain or async, for ``kind``.

        It takes the payload and, if it wants, the ``JobContext``: as its second parameter, which has no default or is
        called ``job``. The annotation of the payload is its type:
        ``dict``, a pydantic model, a dataclass or a TypedDict.

        ``timeout`` limits an attempt (None: the worker's setting; 0: no limit). ``max_attempts`` is for jobs that
        are enqueued through the handler; a row has a number of its own. ``wait`` is a tenacity wait strategy,
        ``retry`` a tenacity retry predicate: what it does not match goes to ``dlq`` at once. ``audit_done`` and
        ``audit_dlq`` say whether these ends are written to the audit log. ``check`` is called when a worker with
        this handler starts: what it raises stops the start, as for a setting that is missing.

        :raises HandlerError: if the kind has a handler already, or the function cannot be one.
        :raises InvalidJob: if ``kind``, ``max_attempts`` or ``timeout`` cannot be stored.
        """
        kind = check_column("job_kind", kind)
        check_column("max_attempts", max_attempts)
        for name, strategy in (("wait", wait), ("retry", retry)):
            if not callable(strategy) or isinstance(strategy, type):
                raise HandlerError(
                    f"{name} of the handler of {kind!r} must be a tenacity strategy, such as "
                    f"tenacity.{'wait_fixed(60)' if name == 'wait' else 'retry_if_exception_type(OSError)'}, "
                    f"got {strategy!r}"
                )
        if timeout is not None and (not isinstance(timeout, timedelta) or timeout < timedelta(0)):
            raise InvalidJob(f"timeout must be a datetime.timedelta of at least 0, got {timeout!r}")

        def decorate(function: HandlerFunction[T]) -> Handler[T]:
            annotation, takes_job = _signature(kind, function)
            audited = {JobStatus.DONE: audit_done, JobStatus.DLQ: audit_dlq}
            handler: Handler[T] = Handler(
                kind=kind,
                function=function,
                payload_type=PayloadType.of(annotation),
                is_async=_is_async(function),
                takes_job=takes_job,
                timeout=timeout,
                max_attempts=max_attempts,
                policy=RetryPolicy(wait, retry),
                audit=frozenset(status for status, wanted in audited.items() if wanted),
                check=check,
            )
            self._add(handler)
            return handler

        return decorate

    def include(self, other: Handlers) -> None:
        """Take over all handlers of another registry, such as a bundled one.

        :raises HandlerError: if a kind has a handler already; then none is taken over.
        """
        for handler in other:
            self._require_free(handler)
        for handler in other:
            self._add(handler)

    def _add(self, handler: Handler[Any]) -> None:
        self._require_free(handler)
        self._by_kind[handler.kind] = handler

    def _require_free(self, handler: Handler[Any]) -> None:
        known = self._by_kind.get(handler.kind)
        if known is not None:
            raise HandlerError(
                f"the kind {handler.kind!r} has a handler already, {_name(known.function)}; "
                f"register {_name(handler.function)} for another kind, or in another registry"
            )

    def get(self, kind: str) -> Handler[Any] | None:
        """The handler of a kind."""
        return self._by_kind.get(kind)

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds that have a handler."""
        return frozenset(self._by_kind)

    def __iter__(self) -> Iterator[Handler[Any]]:
        return iter(self._by_kind.values())

    def __len__(self) -> int:
        return len(self._by_kind)


def _signature(kind: str, function: Callable[..., Any]) -> tuple[Any, bool]:
    """The annotation of the payload, and whether the function takes the JobContext too."""
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if not positional or len(required) > 2 or any(p not in positional[:2] for p in required):
        raise HandlerError(
            f"the handler of {kind!r}, {_name(function)}, must take (payload) or (payload, job); "
            "what else it needs, it gets from its module"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise HandlerError(f"the handler of {kind!r}, {_name(function)}, is a generator; it would never run")
    try:
        hints = typing.get_type_hints(_annotated(function))
    except NameError as error:
        raise HandlerError(
            f"an annotation of the handler of {kind!r}, {_name(function)}, cannot be resolved ({error}); "
            "import the type at run time, not under TYPE_CHECKING"
        ) from error
    # A second parameter that has a default may be the function's own affair
    takes_job = len(positional) > 1 and (positional[1] in required or positional[1].name == "job")
    return hints.get(positional[0].name, dict), takes_job


def _annotated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Where the annotations are: those of a partial are on its function, those of an object on its ``__call__``."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"


__all__ = ["DeadLetter", "Handler", "Handlers", "JobContext", "Snooze", "Stop"]
