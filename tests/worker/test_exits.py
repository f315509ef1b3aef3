"""Handlers that would end the process: exit(), KeyboardInterrupt, any BaseException."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from jobqueue import Handlers
from tests.worker.conftest import Bench


class Odd(BaseException):
    """Caught by no ``except Exception``."""


def leave() -> None:
    sys.exit(3)


def interrupt() -> None:
    raise KeyboardInterrupt


def odd() -> None:
    raise Odd("out of the ordinary")


def cancel() -> None:
    raise asyncio.CancelledError


ENDS = [
    pytest.param(leave, "SystemExit: 3", id="exit"),
    pytest.param(interrupt, "KeyboardInterrupt", id="interrupt"),
    pytest.param(odd, "Odd: out of the ordinary", id="BaseException"),
    pytest.param(cancel, "CancelledError", id="cancelled"),
]


@pytest.mark.parametrize(("end", "expected"), ENDS)
def test_a_plain_handler_that_would_end_the_process_fails_its_attempt_alone(
    bench: Bench, end: Callable[[], None], expected: str
) -> None:
    handlers = Handlers()
    together = threading.Barrier(5)

    @handlers.register("reindex")
    def run(payload: dict[str, Any]) -> None:
        together.wait(20)
        if payload:
            end()

    bad = bench.enqueue({"bad": True}, max_attempts=1)
    bench.enqueue_many(4)
    bench.drain(handlers, concurrency=5)
    assert bench.statuses() == {"dlq": 1, "done": 4}
    assert expected in str(bench.job(bad).last_error)


@pytest.mark.parametrize(("end", "expected"), ENDS)
def test_an_async_handler_that_would_end_the_process_fails_its_attempt_alone(
    bench: Bench, end: Callable[[], None], expected: str
) -> None:
    handlers = Handlers()
    others: list[int] = []

    @handlers.register("reindex")
    async def run(payload: dict[str, Any]) -> None:
        if payload:
            while len(others) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            end()
        others.append(1)
        await asyncio.sleep(0.05)

    bad = bench.enqueue({"bad": True}, max_attempts=1)
    bench.enqueue_many(4)
    bench.drain(handlers, concurrency=5)
    assert bench.statuses() == {"dlq": 1, "done": 4}
    assert expected in str(bench.job(bad).last_error)


@pytest.mark.parametrize("end", [leave, interrupt, odd], ids=["exit", "interrupt", "BaseException"])
def test_a_task_that_a_handler_left_running_cannot_end_the_loop_of_the_others(
    bench: Bench, end: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    handlers = Handlers()
    left: list[asyncio.Task[None]] = []

    async def background() -> None:
        await asyncio.sleep(0)
        end()

    @handlers.register("reindex")
    async def run(payload: dict[str, Any]) -> None:
        if payload:
            left.append(asyncio.create_task(background()))
        else:
            while not (left and left[0].done()):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.02)

    bench.enqueue({"bad": True})
    bench.enqueue_many(4)
    bench.drain(handlers, concurrency=5)
    assert bench.statuses() == {"done": 5}
    left.clear()
    assert "background task" in caplog.text or "Task exception" in caplog.text


def test_a_task_that_a_handler_left_running_ends_with_the_worker(bench: Bench) -> None:
    handlers = Handlers()
    ended: list[str] = []

    async def background() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("cancelled")

    @handlers.register("reindex")
    async def run(payload: dict[str, Any]) -> None:
        asyncio.get_running_loop().create_task(background()).set_name("left behind")
        await asyncio.sleep(0)

    bench.enqueue()
    bench.drain(handlers)
    assert ended == ["cancelled"]


def test_a_handler_cannot_stop_the_loop(bench: Bench) -> None:
    handlers = Handlers()

    @handlers.register("reindex")
    async def run(payload: dict[str, Any]) -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)

    bench.enqueue_many(3)
    bench.drain(handlers)
    assert bench.statuses() == {"done": 3}
