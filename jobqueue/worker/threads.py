"""The lane of plain handlers: one thread a slot."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from contextvars import copy_context
from datetime import timedelta
from queue import SimpleQueue

from jobqueue.worker.attempt import Attempt
from jobqueue.worker.executor import OnEnd


class ThreadLane:
    """Threads are daemons: a handler that hangs cannot keep a stopping process alive."""

    def __init__(self, slots: int, default_timeout: timedelta, on_end: OnEnd) -> None:
        self._slots = slots
        self._default_timeout = default_timeout
        self._on_end = on_end
        self._waiting: deque[Attempt] = deque()
        self._wakeups: SimpleQueue[bool] = SimpleQueue()
        self._beginning = threading.Lock()
        self._closed = False
        self._names = itertools.count(1)
        self._threads: set[threading.Thread] = set()
        """Those that have a slot."""
        self._context = copy_context()

    def start(self) -> None:
        for _ in range(self._slots):
            self._add_thread()

    def accept(self, attempts: list[Attempt]) -> None:
        # A wake-up for each slot at most, and not for each attempt: a thread that is awake takes what it finds, and
        # with quick handlers the switch between threads would cost more than the work
        self._waiting.extend(attempts)
        for _ in range(min(len(attempts), self._slots)):
            self._wakeups.put(True)

    def withdraw(self) -> list[Attempt]:
        return list(iter(self._next, None))

    def close(self) -> None:
        self._closed = True

    def free_slot_of(self, attempt: Attempt) -> None:
        with self._beginning:
            thread = attempt.thread
        if thread is not None:  # it cannot be stopped: it ends with the handler, and another takes its place now
            self._threads.discard(thread)
            self._add_thread()
            self._wakeups.put(True)

    def stop(self, timeout: float) -> None:
        for _ in range(self._slots):
            self._wakeups.put(False)
        until = time.monotonic() + timeout
        for thread in self._threads.copy():
            thread.join(max(0.0, until - time.monotonic()))

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"jobqueue-slot-{next(self._names)}", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _next(self) -> Attempt | None:
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def _work(self) -> None:
        thread = threading.current_thread()
        while self._wakeups.get():
            while not self._closed and (attempt := self._next()) is not None:
                if not self._run(attempt, thread):
                    return

    def _run(self, attempt: Attempt, thread: threading.Thread) -> bool:
        """Whether the thread still has a slot afterwards."""
        with self._beginning:
            if attempt.silenced:
                return True
            attempt.thread = thread
        # In a context of its own: what a handler leaves in a ContextVar is not for the next job
        outcome = self._context.copy().run(attempt.run, self._default_timeout)
        if attempt.silenced:
            return False
        self._on_end(attempt, outcome)
        return True
