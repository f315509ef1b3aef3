"""Where attempts are held from their claim to their end, and run in slots."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Protocol

from jobqueue.repository import Outcome
from jobqueue.worker.attempt import Attempt

OnEnd = Callable[[Attempt, Outcome | None], None]


class Lane(Protocol):
    """A number of slots for handlers of one sort."""

    def start(self) -> None: ...

    def accept(self, attempts: list[Attempt]) -> None:
        """Run these as slots become free."""

    def withdraw(self) -> list[Attempt]:
        """Take back what has not begun."""

    def close(self) -> None:
        """Begin nothing any more."""

    def free_slot_of(self, attempt: Attempt) -> None:
        """A silenced attempt may run on, but not in the way of others."""

    def stop(self, timeout: float) -> None: ...


class Executor:
    """The attempts of this worker. ``held`` are those that run or wait for a slot: their claims are renewed.

    ``on_outcome`` gets what is still to be written. ``room`` is set when fewer than ``room_below`` are held.
    """

    def __init__(
        self,
        make_lanes: Callable[[OnEnd], dict[bool, Lane]],
        on_outcome: Callable[[Outcome], None],
    ) -> None:
        self.held: set[Attempt] = set()
        self.ended = 0
        """How many attempts have ended so far."""
        self.room = threading.Event()
        self.room_below = 1
        self._count = itertools.count(1)
        self._on_outcome = on_outcome
        self._lanes = make_lanes(self._end)
        """By whether the handler is async."""

    @property
    def lanes(self) -> int:
        return len(self._lanes)

    def start(self) -> None:
        for lane in self._lanes.values():
            lane.start()

    def accept(self, attempts: list[Attempt]) -> None:
        self.held.update(attempts)
        for is_async, lane in self._lanes.items():
            lane.accept([attempt for attempt in attempts if attempt.handler.is_async is is_async])

    def close(self) -> None:
        """Begin nothing any more; what is accepted from now on can only be withdrawn."""
        for lane in self._lanes.values():
            lane.close()

    def withdraw(self) -> list[Attempt]:
        """Take back the attempts that have not begun, silenced, so that their jobs can be released."""
        waiting = [attempt for lane in self._lanes.values() for attempt in lane.withdraw()]
        self.held.difference_update(waiting)
        return [attempt for attempt in waiting if attempt.silence()]

    def give_up(self, attempt: Attempt, outcome: Callable[[], Outcome | None]) -> bool:
        """Silence an attempt and free its slot; whether it had a voice still.

        ``outcome`` makes what is to be written; None where the claim is lost, and with it the say in the matter.
        """
        if not attempt.silence():
            return False
        attempt.cut_off()
        self._lanes[attempt.handler.is_async].free_slot_of(attempt)
        self._end(attempt, outcome())
        return True

    def stop(self, timeout: float) -> None:
        until = time.monotonic() + timeout
        for lane in self._lanes.values():
            lane.stop(max(0.0, until - time.monotonic()))

    def _end(self, attempt: Attempt, outcome: Outcome | None) -> None:
        # In this order: who finds nothing held finds the outcome with the finisher already
        if outcome is not None:
            self._on_outcome(outcome)
        self.held.discard(attempt)
        self.ended = next(self._count)
        if len(self.held) < self.room_below and not self.room.is_set():
            self.room.set()
