"""How many jobs the fetcher holds beyond the slots, so that quick jobs are claimed many at a time."""

from __future__ import annotations

from typing import Final

SECONDS: Final = 0.02
"""So much work, at the pace just seen, may be held beyond the slots."""

WINDOW: Final = 2 * SECONDS
"""The pace is seen over at least so long. Longer than SECONDS, or slots that end together would look quick."""

LIMIT: Final = 1000


class ReadAhead:
    """None while jobs are slow: a job that waits here could run on another worker, and is lost with this one.

    Slow is what takes a slot longer than ``SECONDS``. Without ``slots`` there is no read-ahead at all.
    """

    def __init__(self, slots: int | None) -> None:
        self._slots = slots
        self.reset(0, 0.0)

    def reset(self, ended: int, now: float) -> None:
        """Forget the pace. For the arguments see :meth:`jobs`."""
        self._pace = 0.0
        self._ended = ended
        self._seen_at = now

    def jobs(self, ended: int, now: float) -> int:
        """The number to hold beyond the slots. ``ended``: how many attempts have ended so far; ``now``: seconds."""
        if self._slots is None:
            return 0
        elapsed = now - self._seen_at
        if elapsed >= WINDOW:
            pace = (ended - self._ended) / elapsed
            # Up at once, down by halves: one late commit does not make quick jobs slow
            self._pace = max(pace, (self._pace + pace) / 2)
            self._ended, self._seen_at = ended, now
        ahead = int(self._pace * SECONDS)
        return min(LIMIT, ahead) if ahead >= self._slots else 0
