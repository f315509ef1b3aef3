"""How many jobs are held beyond the slots."""

from __future__ import annotations

import pytest

from jobqueue.worker.read_ahead import LIMIT, SECONDS, ReadAhead


def ahead_after(slots: int, attempt_seconds: float, seconds: float = 1.0) -> int:
    """What is held ahead once ``slots`` have run attempts of that length for a while, all in step."""
    read_ahead = ReadAhead(slots)
    read_ahead.reset(0, 100.0)
    ahead = 0
    for look in range(int(seconds / 0.001)):
        elapsed = look * 0.001
        ended = int(elapsed / attempt_seconds) * slots
        ahead = read_ahead.jobs(ended, 100.0 + elapsed)
        if attempt_seconds > 2 * SECONDS:
            assert ahead == 0, f"after {elapsed:.3f} s"
    return ahead


@pytest.mark.parametrize("slots", [1, 8, 100])
@pytest.mark.parametrize("attempt_seconds", [0.05, 0.2, 1.0])
def test_nothing_is_held_beyond_the_slots_while_jobs_are_slow_also_when_slots_end_in_step(
    slots: int, attempt_seconds: float
) -> None:
    assert ahead_after(slots, attempt_seconds, seconds=5) == 0


def test_quick_jobs_are_held_for_some_milliseconds_of_work() -> None:
    assert ahead_after(10, attempt_seconds=0.001) == pytest.approx(10 / 0.001 * SECONDS, rel=0.1)


def test_it_never_holds_more_than_its_limit() -> None:
    assert ahead_after(1000, attempt_seconds=0.0001) == LIMIT


def test_the_pace_seen_before_jobs_turned_slow_is_forgotten() -> None:
    read_ahead = ReadAhead(10)
    read_ahead.reset(0, 100.0)
    assert read_ahead.jobs(1000, 100.1) > 0
    read_ahead.reset(1000, 100.2)
    assert read_ahead.jobs(1000, 100.3) == 0


def test_without_slots_there_is_no_read_ahead() -> None:
    read_ahead = ReadAhead(None)
    read_ahead.reset(0, 100.0)
    assert read_ahead.jobs(100_000, 101.0) == 0
