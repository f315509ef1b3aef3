"""Waiting for SIGTERM, SIGINT or a call: a signal handler only notes a request."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Set once by :meth:`set` from any thread, or by a signal.

    A SimpleQueue, whose put() may interrupt anything, and not a ``threading.Event``: the lock of that may be held
    by the very thread that the signal interrupts.
    """

    def __init__(self) -> None:
        self._requests: SimpleQueue[None] = SimpleQueue()
        self._signals = 0

    def set(self) -> None:
        self._requests.put(None)

    def wait(self) -> None:
        """Return when a stop was asked for."""
        self._requests.get()
        self.set()  # for the next who waits

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        """Within the block SIGTERM and SIGINT ask for a stop; the second one ends the process at once.

        Outside the main thread, where Python allows no signal handlers, it leaves the signals alone.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 1:
            os._exit(128 + number)
        self.set()
