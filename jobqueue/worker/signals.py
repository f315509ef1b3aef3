"""Waiting for SIGTERM, SIGINT or a call: a signal handler only writes a byte."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Set once by :meth:`set` from any thread, or by a signal.

    A pipe, not a ``threading.Event``: its lock may be held by the very thread that the signal interrupts.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._signals = 0

    def set(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full of requests is requested too
            os.write(self._write, b"!")

    def wait(self, timeout: float) -> bool:
        """Whether a stop was asked for, within ``timeout`` seconds."""
        ready, _, _ = select.select([self._read], [], [], timeout)
        return bool(ready)

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)

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
