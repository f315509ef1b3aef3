"""The lane of async handlers: tasks in one event loop, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import timedelta

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
        self._loop = asyncio.new_event_loop()
        self._stopping = False
        self._thread = threading.Thread(target=self._run_loop, name="jobqueue-loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def accept(self, attempts: list[Attempt]) -> None:
        if attempts:
            self._waiting.extend(attempts)
            self._loop.call_soon_threadsafe(self._fill)

    def withdraw(self) -> list[Attempt]:
        withdrawn: list[Attempt] = []
        while (attempt := self._next()) is not None:
            withdrawn.append(attempt)
        return withdrawn

    def free_slot_of(self, attempt: Attempt) -> None:
        self._loop.call_soon_threadsafe(self._abandon, attempt)

    def stop(self, timeout: float) -> None:
        closing = asyncio.run_coroutine_threadsafe(self._close(timeout), self._loop)
        try:
            closing.result(timeout)
        except (FutureTimeoutError, TimeoutError):
            logger.warning("the event loop is blocked by a handler; it is left behind")
        self._stopping = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout)
        if not self._thread.is_alive():
            self._loop.close()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._stopping:
            try:
                self._loop.run_forever()
            except BaseException as error:
                # SystemExit of a task that a handler left running ends the loop, but not for the other handlers
                logger.error("a background task of a handler raised out of the event loop: %s", failure_summary(error))

    def _next(self) -> Attempt | None:
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def _fill(self) -> None:
        while len(self._tasks) < self._slots and (attempt := self._next()) is not None:
            if not attempt.silenced:
                attempt.begun = True
                self._tasks[attempt] = self._loop.create_task(self._drive(attempt))

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

    async def _close(self, patience: float) -> None:
        tasks = [*self._tasks.values(), *self._abandoned]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=patience / 2)
        await self._on_close()
