"""The worker wires its parts, starts them, waits, and stops them. The only place that knows them all."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy.exc import OperationalError

from jobqueue import migrations
from jobqueue.errors import DatabaseUnavailable, HandlerError, JobQueueError, SchemaOutOfDate, UnknownKind
from jobqueue.failure import failure_summary, mask
from jobqueue.handlers import Handlers
from jobqueue.maintenance.reaper import Reaper
from jobqueue.repository import Claimed
from jobqueue.settings import Settings, load_settings
from jobqueue.states import JobStatus
from jobqueue.worker.attempt import Attempt
from jobqueue.worker.databases import Databases
from jobqueue.worker.executor import Executor, Lane, OnEnd
from jobqueue.worker.fetcher import Fetcher, Polling, Scope
from jobqueue.worker.finisher import Finisher
from jobqueue.worker.heartbeat import Heartbeat
from jobqueue.worker.loop import LoopLane
from jobqueue.worker.maintenance import MaintenanceLoop
from jobqueue.worker.read_ahead import ReadAhead
from jobqueue.worker.service import Service
from jobqueue.worker.signals import StopRequest
from jobqueue.worker.threads import ThreadLane
from jobqueue.worker.watchdog import Watchdog

logger = logging.getLogger("jobqueue.worker")


class Worker:
    """Runs the handlers of a registry on the jobs of the database in ``settings`` (the environment's, if None).

    ``kinds`` and ``tenants`` limit what it claims; it never claims a kind that it has no handler for. With
    ``drain`` it stops once nothing is due and nothing runs.

    :raises HandlerError: there is no handler, or none for one of ``kinds``.
    :raises SettingsError: a setting is missing or wrong.
    """

    def __init__(
        self,
        handlers: Handlers,
        settings: Settings | None = None,
        *,
        kinds: Collection[str] | None = None,
        tenants: Collection[UUID] | None = None,
        drain: bool = False,
    ) -> None:
        self.id = f"{socket.gethostname()}/{os.getpid()}/{uuid4()}"
        """The name in ``job.claimed_by``: new for each start, so that no namesake keeps a dead worker's claims."""
        self._handlers = handlers
        self._settings = settings or load_settings()
        self._url = self._settings.require_database_url()
        scope_kinds = _scope(handlers, kinds)
        self._scope = Scope(self.id, scope_kinds, None if tenants is None else tuple(sorted(tenants)))
        self._drain = drain
        self._stop_request = StopRequest()
        self._process = os.getpid()
        self._ran = False

    def stop(self) -> None:
        """Ask the worker to stop, from any thread; :meth:`run` returns when it has."""
        self._stop_request.set()

    def run(self) -> None:
        """Work until SIGTERM, SIGINT or :meth:`stop`; a second signal ends the process at once.

        On the way out, what has not begun is released, what runs gets ``shutdown_timeout``, and what is still
        running then is left to the recovery by other workers.

        :raises DatabaseUnavailable: the database cannot be reached at the start.
        :raises SchemaOutOfDate: the schema does not fit this version.
        :raises UnknownKind: a handler's kind is not in the database's enum.
        """
        if self._process != os.getpid() or self._ran:
            raise JobQueueError("a Worker runs once, in the process that made it; make another one")
        self._ran = True
        for handler in self._handlers:
            if handler.check is not None and handler.kind in self._scope.kinds:
                handler.check()
        databases = Databases(self._url, self._settings.concurrency)
        try:
            self._check_database(databases)
            parts = _Parts(self._handlers, self._settings, self._scope, databases, drain=self._drain)
            with self._stop_request.on_signals():
                self._say_hello()
                # Also when one part has ended: the work is drained, or there is a defect
                parts.start(on_end=self._stop_request.set)
                self._stop_request.wait()
                parts.stop()
            parts.raise_defects()
            logger.info("worker %s stopped", self.id)
        finally:
            databases.dispose()

    def _check_database(self, databases: Databases) -> None:
        try:
            with databases.queue.connect() as connection:
                problems = migrations.check(connection)
                missing = [] if problems else migrations.missing_kinds(connection, self._scope.kinds)
        except OperationalError as error:
            where = mask(self._url.render_as_string(hide_password=True))
            raise DatabaseUnavailable(f"{where} cannot be reached: {failure_summary(error)}") from error
        if problems:
            raise SchemaOutOfDate("; ".join(f"{fault.problem}: {fault.remedy}" for fault in problems))
        if missing:
            raise UnknownKind(missing)

    def _say_hello(self) -> None:
        logger.info(
            "worker %s started: %d slots, kinds %s%s",
            self.id,
            self._settings.concurrency,
            ", ".join(self._scope.kinds),
            "" if self._scope.tenants is None else f", {len(self._scope.tenants)} tenants",
        )


class _Parts:
    """The running parts of a worker, and the order in which they start and stop."""

    def __init__(
        self, handlers: Handlers, settings: Settings, scope: Scope, databases: Databases, *, drain: bool
    ) -> None:
        self._settings = settings
        slots = settings.concurrency
        self._finisher = Finisher(databases.queue)

        def make_lanes(on_end: OnEnd) -> dict[bool, Lane]:
            lanes: dict[bool, Lane] = {}
            used = {handler.is_async for handler in handlers if handler.kind in scope.kinds}
            if False in used:
                lanes[False] = ThreadLane(slots, settings.timeout, on_end)
            if True in used:
                lanes[True] = LoopLane(slots, settings.timeout, on_end, databases.dispose_async)
            return lanes

        def make_attempt(claimed: Claimed, lease_until: float) -> Attempt:
            handler = handlers.get(claimed.kind)
            assert handler is not None, "only kinds with a handler are claimed"
            return Attempt(claimed, handler, databases, lease_until)

        self._executor = Executor(make_lanes, self._finisher.put)
        self._fetcher = Fetcher(
            databases.queue,
            self._executor,
            self._finisher,
            make_attempt,
            scope,
            slots=slots,
            # With lanes of both sorts, what is held beyond the slots could run beyond them too
            read_ahead=ReadAhead(slots if self._executor.lanes == 1 else None),
            lease=settings.stale_after,
            polling=Polling(settings.poll_interval, settings.poll_interval_max),
            drain=drain,
        )
        self._heartbeat = Heartbeat(
            databases.heartbeat,
            self._executor,
            _record(scope, slots),
            every=settings.renew_every,
            lease=settings.stale_after,
        )
        unaudited = [handler.kind for handler in handlers if JobStatus.DLQ not in handler.audit]
        self._maintenance = MaintenanceLoop(
            databases.queue, Reaper(settings.stale_after, unaudited), settings.stale_after / 2
        )
        self._watchdog = Watchdog(self._executor, _watchdog_interval(handlers, settings))
        self._services: tuple[Service, ...] = (
            self._finisher,
            self._heartbeat,
            self._watchdog,
            self._maintenance,
            self._fetcher,
        )

    def start(self, on_end: Callable[[], None]) -> None:
        self._executor.start()
        for service in self._services:
            service.on_end = on_end
            service.start()

    def stop(self) -> None:
        grace = self._settings.shutdown_timeout.total_seconds()
        deadline = time.monotonic() + grace
        logger.info("stopping: %d jobs are held, what runs has %.0f s", len(self._executor.held), grace)
        self._executor.close()
        self._maintenance.stop()
        self._fetcher.stop(grace)
        while self._executor.held and time.monotonic() < deadline:
            self._executor.room_below = len(self._executor.held)
            self._executor.room.clear()
            self._executor.room.wait(min(0.1, max(0.0, deadline - time.monotonic())))
        self._fetcher.join(max(0.3, deadline - time.monotonic()))
        for attempt in self._executor.held.copy():
            if self._executor.give_up(attempt, lambda: None):
                logger.warning(
                    "job %s (%s) still runs after %.0f s; it is left to recovery",
                    attempt.claimed.id,
                    attempt.claimed.kind,
                    grace,
                )
        self._watchdog.stop()
        self._executor.stop(timeout=0.5)
        self._finisher.stop(grace=max(0.3, deadline - time.monotonic()))
        self._finisher.join(max(0.5, deadline - time.monotonic()))
        self._heartbeat.stop()
        # What has not ended by now waits for the database; these threads are daemons
        until = max(deadline, time.monotonic() + 0.3)
        for service in self._services:
            service.join(until - time.monotonic())

    def raise_defects(self) -> None:
        for service in self._services:
            if service.crashed is not None:
                raise service.crashed


def _scope(handlers: Handlers, kinds: Collection[str] | None) -> tuple[str, ...]:
    if not handlers:
        raise HandlerError("there are no handlers; register one with @handlers.register(kind)")
    unknown = set(kinds or ()) - handlers.kinds
    if unknown:
        raise HandlerError(
            f"no handler for the kind {', '.join(sorted(unknown))}; there are handlers for "
            f"{', '.join(sorted(handlers.kinds))}"
        )
    return tuple(sorted(kinds if kinds else handlers.kinds))


def _record(scope: Scope, slots: int) -> dict[str, Any]:
    from jobqueue import __version__

    return {
        "id": scope.worker,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "kinds": list(scope.kinds),
        "tenants": None if scope.tenants is None else list(scope.tenants),
        "concurrency": slots,
        "version": __version__,
    }


def _watchdog_interval(handlers: Handlers, settings: Settings) -> timedelta:
    """A tenth of the shortest limit: close enough, and nothing to notice when limits are minutes."""
    limits = [limit for limit in (settings.timeout, *(handler.timeout for handler in handlers)) if limit]
    shortest = min([*limits, settings.stale_after])
    return min(max(shortest / 10, timedelta(milliseconds=20)), timedelta(seconds=1))
