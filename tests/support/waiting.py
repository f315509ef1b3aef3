"""Waiting for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], timeout: float = 30, *, what: str = "", every: float = 0.02) -> T:
    """Return the first true value of ``predicate()``, asked again and again.

    :raises AssertionError: after ``timeout`` seconds, saying what was waited for and the last value.
    """
    deadline = time.monotonic() + timeout
    while not (value := predicate()):
        if time.monotonic() > deadline:
            wanted = what or getattr(predicate, "__name__", repr(predicate))
            raise AssertionError(f"waited {timeout:g} s for {wanted}; last value: {value!r}")
        time.sleep(every)
    return value
