"""The lane of async handlers: tasks in one event loop, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from datetime import timedelta
from typing import Any

from jobqueue.failure import failure_summary
from jobqueue.worker.attempt import Attempt
from jobqueue.worker.executor import OnEnd

logger = logging.getLogger("jobqueue.worker")


class LoopLane:
    """Up to ``slots`` tasks at once. ``on_close`` runs in the loop at the end, after the tasks."""

    def __init__(
        self, slots: int, default_timeout: timedelta, on_end: OnEnd, on_close: Callable[[], Awaitable[None]]
    ) -> None:
        self._slots = slots
        self._default_timeout = default_timeout
        self._on_end = on_end
        self._on_close = on_close
        self._waiting: deque[Attempt] = deque()
        self._tasks: dict[Attempt, asyncio.Task[None]] = {}
        self._abandoned: set[asyncio.Task[None]] = set()
        self._closed = False
        self._ended = False
        self._closing: asyncio.Task[None] | None = None
        self._context = copy_context()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_report)
        self._thread = threading.Thread(target=self._run_loop, name="jobqueue-loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def accept(self, attempts: list[Attempt]) -> None:
        if attempts:
            self._waiting.extend(attempts)
            if not self._closed:
                self._loop.call_soon_threadsafe(self._fill)

    def withdraw(self) -> list[Attempt]:
        return list(iter(self._next, None))

    def close(self) -> None:
        self._closed = True

    def free_slot_of(self, attempt: Attempt) -> None:
        self._loop.call_soon_threadsafe(self._abandon, attempt)

    def stop(self, timeout: float) -> None:
        """Cancel what still runs. A handler that does not let itself be cancelled is left behind, and the loop too."""
        self._closed = True
        self._loop.call_soon_threadsafe(self._start_closing, timeout / 2)
        self._thread.join(timeout)
        if self._thread.is_alive():
            logger.warning("the event loop is left behind: a handler blocks it, or does not let itself be cancelled")

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._ended:
            try:
                self._loop.run_forever()
            except BaseException as error:
                # SystemExit of a task that a handler left running ends the loop, but not for the other handlers
                logger.error("a background task of a handler raised out of the event loop: %s", failure_summary(error))
        self._loop.close()

    def _next(self) -> Attempt | None:
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def _fill(self) -> None:
        while not self._closed and len(self._tasks) < self._slots and (attempt := self._next()) is not None:
            if not attempt.silenced:
                # In a context of its own: this may be called by the task of another job
                task = self._loop.create_task(self._drive(attempt), context=self._context.copy())
                self._tasks[attempt] = task

    async def _drive(self, attempt: Attempt) -> None:
        outcome = await attempt.run_async(self._default_timeout)
        self._tasks.pop(attempt, None)
        if not attempt.silenced:
            self._on_end(attempt, outcome)
        self._fill()

    def _abandon(self, attempt: Attempt) -> None:
        """A handler may catch the cancellation and go on; its slot is free all the same."""
        task = self._tasks.pop(attempt, None)
        if task is not None:
            self._abandoned.add(task)
            task.add_done_callback(self._abandoned.discard)
            task.cancel()
        self._fill()

    def _start_closing(self, patience: float) -> None:
        self._closing = self._loop.create_task(self._close(patience))

    async def _close(self, patience: float) -> None:
        # All tasks, also those that handlers left running
        tasks = asyncio.all_tasks() - {self._closing}
        for task in tasks:
            task.cancel()
        if tasks:
            _, tasks = await asyncio.wait(tasks, timeout=patience)
        try:
            await self._on_close()
            if tasks:
                await asyncio.wait(tasks)
            await self._loop.shutdown_asyncgens()
            # The threads of asyncio.to_thread, and of looking up the database's name
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._loop.shutdown_default_executor(), patience)
        finally:
            self._ended = True
            self._loop.stop()


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What asyncio would log with a traceback, in which other people's data may be."""
    error = context.get("exception")
    logger.error("%s%s", context["message"], "" if error is None else f": {failure_summary(error)}")
