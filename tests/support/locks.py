"""Seeing that a statement waits for a lock, instead of guessing by time; and running it beside the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Engine, text

from tests.support.waiting import wait_until

T = TypeVar("T")

_BLOCKED = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")


def wait_for_blocked(engine: Engine, count: int = 1) -> None:
    """Return once ``count`` statements in the test's database wait for a lock."""

    def blocked() -> bool:
        with engine.connect() as connection:
            return bool(connection.scalar(_BLOCKED) >= count)

    wait_until(blocked, what=f"{count} statements to wait for a lock")


@contextmanager
def running(work: Callable[[], T]) -> Iterator[Future[T]]:
    """``work`` in a thread of its own, for as long as the block runs; the block ends what it waits for."""
    with ThreadPoolExecutor(1) as threads:
        yield threads.submit(work)


def in_threads(works: list[Callable[[], T]]) -> list[T]:
    """Run all of ``works`` at once, each in a thread; their results in order."""
    with ThreadPoolExecutor(len(works)) as threads:
        return [future.result(timeout=60) for future in [threads.submit(work) for work in works]]
