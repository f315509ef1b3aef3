"""The lane of plain handlers: one thread a slot."""

from __future__ import annotations

import itertools
import threading
from datetime import timedelta
from queue import Empty, SimpleQueue

from jobqueue.worker.attempt import Attempt
from jobqueue.worker.executor import OnEnd


class ThreadLane:
    """Threads are daemons: a handler that hangs cannot keep a stopping process alive."""

    def __init__(self, slots: int, default_timeout: timedelta, on_end: OnEnd) -> None:
        self._slots = slots
        self._default_timeout = default_timeout
        self._on_end = on_end
        self._waiting: SimpleQueue[Attempt | None] = SimpleQueue()
        self._beginning = threading.Lock()
        self._names = itertools.count(1)

    def start(self) -> None:
        for _ in range(self._slots):
            self._add_thread()

    def accept(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            self._waiting.put(attempt)

    def withdraw(self) -> list[Attempt]:
        withdrawn: list[Attempt] = []
        while True:
            try:
                attempt = self._waiting.get_nowait()
            except Empty:
                return withdrawn
            if attempt is not None:
                withdrawn.append(attempt)

    def free_slot_of(self, attempt: Attempt) -> None:
        with self._beginning:
            begun = attempt.begun
        if begun:  # its thread cannot be stopped: it ends with the handler, and another takes its place now
            self._add_thread()

    def stop(self, timeout: float) -> None:
        for _ in range(self._slots):
            self._waiting.put(None)

    def _add_thread(self) -> None:
        threading.Thread(target=self._work, name=f"jobqueue-slot-{next(self._names)}", daemon=True).start()

    def _work(self) -> None:
        while (attempt := self._waiting.get()) is not None:
            with self._beginning:
                if attempt.silenced:
                    continue
                attempt.begun = True
            outcome = attempt.run(self._default_timeout)
            if attempt.silenced:
                return
            self._on_end(attempt, outcome)
