"""Ctrl-C, SIGTERM and a closed terminal end the demo, but never in the middle of starting or ending something."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Final, Self

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruptions:
    """As a context manager it only notes these signals; ``check`` raises, and so does the end of the block.

    An exception in the middle of anything could be lost, or leave a process behind that nobody knows of.
    """

    def __init__(self) -> None:
        self._noted: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            # nohup ignores SIGHUP on purpose
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        # Also instead of a failure: Ctrl-C reaches child processes too, and what failed may have failed because of it
        if not isinstance(error, KeyboardInterrupt | SystemExit):
            self.check()

    def check(self) -> None:
        """Raise what was noted, as Python would have: KeyboardInterrupt, or SystemExit for the other signals."""
        if self._noted == signal.SIGINT:
            raise KeyboardInterrupt
        if self._noted is not None:
            raise SystemExit(128 + self._noted)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = self._noted or number
