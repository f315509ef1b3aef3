"""How long to wait before the next attempt: bounded, spread, and never the end of a job."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from tenacity import (
    retry_if_exception_message,
    retry_if_exception_type,
    retry_if_not_exception_type,
    retry_never,
    wait_chain,
    wait_exponential,
    wait_exponential_jitter,
    wait_fixed,
    wait_incrementing,
    wait_none,
    wait_random,
    wait_random_exponential,
)
from tenacity.wait import wait_base
from uuid_utils.compat import uuid7

from jobqueue.retry import MAX_DELAY, RetryPolicy

HOUR = timedelta(hours=1)
ERROR = ValueError("it broke")
ATTEMPTS = [1, 2, 3, 8, 16, 40, 47, 48, 63, 64, 65, 100, 1_023, 1_024, 1_025, 2_000, 10_000]


def seconds(wait: Any, attempts: list[int]) -> list[float]:
    return [RetryPolicy(wait).delay(attempt, ERROR).total_seconds() for attempt in attempts]


def test_the_schedules_that_people_know() -> None:
    first = list(range(1, 8))
    assert seconds(wait_exponential(multiplier=1, exp_base=2, max=3600), first) == [1, 2, 4, 8, 16, 32, 64]
    assert seconds(wait_exponential(multiplier=1, exp_base=5, max=3600), first) == [1, 5, 25, 125, 625, 3125, 3600]
    assert seconds(wait_incrementing(start=10, increment=5, max=25), first) == [10, 15, 20, 25, 25, 25, 25]
    assert seconds(wait_fixed(7) + wait_incrementing(start=1, increment=1), first) == [8, 9, 10, 11, 12, 13, 14]
    assert seconds(wait_chain(wait_fixed(1), wait_fixed(5), wait_fixed(25)), first) == [1, 5, 25, 25, 25, 25, 25]
    assert seconds(wait_none(), first) == [0] * 7
    assert seconds(lambda state: state.attempt_number * 2, [1, 2]) == [2, 4]
    assert seconds(wait_fixed(timedelta(minutes=1)), [1]) == [60]


CAPPED: dict[str, wait_base] = {
    "2^n": wait_exponential(multiplier=1, exp_base=2, max=3600),
    "5^n": wait_exponential(multiplier=1, exp_base=5, max=3600),
    "1.5^n, a float": wait_exponential(multiplier=0.1, exp_base=1.5, max=3600),
    "1^n": wait_exponential(multiplier=1, exp_base=1.0, max=3600),
    "0^n": wait_exponential(multiplier=1, exp_base=0, max=3600),
    "times 0": wait_exponential(multiplier=0, exp_base=2, max=3600),
    "arithmetic": wait_incrementing(start=1, increment=60, max=3600),
    "full jitter": wait_random_exponential(multiplier=1, exp_base=5, max=3600),
    "some jitter": wait_exponential_jitter(initial=1, max=3600, exp_base=5, jitter=60),
    "composed": wait_exponential(multiplier=1, exp_base=5, max=3000) + wait_random(0, 600),
    "the default": RetryPolicy().wait,  # type: ignore[dict-item]
}


@pytest.mark.parametrize("wait", CAPPED.values(), ids=CAPPED.keys())
def test_no_schedule_overflows_or_exceeds_its_cap(wait: wait_base, caplog: pytest.LogCaptureFixture) -> None:
    for attempt in ATTEMPTS:
        assert timedelta(0) <= RetryPolicy(wait).delay(attempt, ERROR) <= HOUR
    assert caplog.records == []


UNCAPPED: dict[str, wait_base] = {
    "2^n": wait_exponential(multiplier=1, exp_base=2),
    "5^n, a float": wait_exponential(multiplier=1.5, exp_base=5),
    "arithmetic": wait_incrementing(start=1, increment=10**9),
    "composed": wait_exponential(exp_base=5) + wait_exponential(exp_base=5),
}


@pytest.mark.parametrize("wait", UNCAPPED.values(), ids=UNCAPPED.keys())
def test_a_schedule_without_a_cap_ends_at_the_longest_delay(wait: wait_base, caplog: pytest.LogCaptureFixture) -> None:
    delays = [RetryPolicy(wait).delay(attempt, ERROR) for attempt in ATTEMPTS]
    assert delays == sorted(delays)
    assert delays[-1] == MAX_DELAY
    assert datetime.now(UTC) + delays[-1] < datetime(9999, 1, 1, tzinfo=UTC)
    assert caplog.records == []


@pytest.mark.parametrize("attempt", [1, 3, 20, 1_000])
def test_jobs_that_failed_together_do_not_come_back_together(attempt: int) -> None:
    policy = RetryPolicy()
    delays = sorted(policy.delay(attempt, ERROR).total_seconds() for _ in range(10_000))
    high = min(10 * 2.0 ** (attempt - 1), 3600)
    assert 1 <= delays[0] < 1 + high / 20
    assert high * 0.95 < delays[-1] <= high
    # No tenth of the interval holds many more than a tenth of the jobs
    tenth = (high - 1) / 10
    crowds = [sum(1 + n * tenth <= delay < 1 + (n + 1) * tenth for delay in delays) for n in range(10)]
    assert max(crowds) < 1_400


def _raises(_: object) -> float:
    raise OverflowError("too much")


BROKEN: dict[str, Callable[[Any], Any]] = {
    "raises": _raises,
    "negative": lambda _: -0.001,
    "infinity": lambda _: float("inf"),
    "minus infinity": lambda _: float("-inf"),
    "nan": lambda _: float("nan"),
    "a number too large for a float": lambda _: 10**400,
    "None": lambda _: None,
    "text": lambda _: "5",
    "bool": lambda _: True,
    "Decimal": lambda _: Decimal(5),
    "a naive datetime": lambda _: datetime(2030, 1, 1),
    "a negative timedelta": lambda _: timedelta(seconds=-1),
    "composed with a broken one": wait_fixed(1) + _raises,  # type: ignore[operator]
}


@pytest.mark.parametrize("wait", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("attempt", [1, 10_000])
def test_a_broken_strategy_gives_the_default_delay_and_a_log_line(
    wait: Any, attempt: int, caplog: pytest.LogCaptureFixture
) -> None:
    delay = RetryPolicy(wait).delay(attempt, ERROR)
    assert timedelta(seconds=1) <= delay <= min(HOUR, timedelta(seconds=10 * 2.0 ** min(attempt - 1, 20)))
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert f"failed at attempt {attempt}" in record.getMessage()


def test_a_strategy_sees_the_attempt_and_its_error() -> None:
    seen: list[tuple[int, BaseException | None]] = []

    def wait(state: Any) -> float:
        seen.append((state.attempt_number, state.outcome.exception()))
        return 0.0

    RetryPolicy(wait).delay(3, ERROR)
    assert seen == [(3, ERROR)]


PREDICATES: dict[str, tuple[Any, bool]] = {
    "the default": (RetryPolicy().retry, True),
    "its type": (retry_if_exception_type(ValueError), True),
    "another type": (retry_if_exception_type(OSError), False),
    "not its type": (retry_if_not_exception_type(ValueError), False),
    "its text": (retry_if_exception_message(match="it broke"), True),
    "either": (retry_if_exception_type(OSError) | retry_if_exception_message(match="it"), True),
    "both": (retry_if_exception_type(OSError) & retry_if_exception_message(match="it"), False),
    "never": (retry_never, False),
    "a function": (lambda state: state.attempt_number < 3, False),
}


@pytest.mark.parametrize(("retry", "wanted"), PREDICATES.values(), ids=PREDICATES.keys())
def test_a_predicate_decides_whether_to_try_again(retry: Any, wanted: bool) -> None:
    assert RetryPolicy(retry=retry).wants(3, ERROR) is wanted


def test_a_broken_predicate_counts_as_yes(caplog: pytest.LogCaptureFixture) -> None:
    assert RetryPolicy(retry=_raises).wants(1, ERROR)  # type: ignore[arg-type]
    assert "the retry predicate" in caplog.text


def test_processes_that_were_forked_draw_different_delays_and_ids() -> None:
    def draw() -> str:
        policy = RetryPolicy()
        # Of an id, what is random; the front is the time
        return " ".join([*(str(policy.delay(9, ERROR)) for _ in range(3)), str(uuid7())[-17:]])

    random.random()
    uuid7()
    drawn = [_in_a_fork(draw) for _ in range(3)] + [draw()]
    for position in range(4):
        assert len({line.split()[position] for line in drawn}) == 4


def _in_a_fork(work: Callable[[], str]) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, work().encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        drawn = pipe.read()
    os.waitpid(child, 0)
    return drawn
