"""What an attempt ends in, and what is written of a failure, whatever the handler raises."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import create_engine, text
from tenacity.retry import retry_if_exception_type
from tenacity.wait import wait_fixed, wait_none

from jobqueue import DeadLetter, Handlers, JobContext, Snooze, Stop
from jobqueue.failure import MAX_BYTES
from tests.worker.conftest import Bench


class Careless(Snooze):
    """A Snooze that does not call its base."""

    def __init__(self) -> None:
        pass


class Endless(Snooze):
    def __init__(self) -> None:
        self.delay = timedelta.max


def raising(error: Any, **options: Any) -> Handlers:
    handlers = Handlers()

    @handlers.register("reindex", **options)
    def run(payload: dict[str, Any]) -> None:
        raise error if isinstance(error, BaseException) else error()

    return handlers


def test_a_return_is_done(bench: Bench) -> None:
    handlers = Handlers()

    @handlers.register("reindex", audit_done=True)
    def run(payload: dict[str, Any]) -> str:
        return "what a handler returns does not count"

    job_id = bench.enqueue()
    bench.drain(handlers)
    job = bench.job(job_id)
    assert (job.status, job.attempts, job.last_error) == ("done", 1, None)
    assert job.completed_at is not None
    assert bench.audit() == ["job_done"]


def test_an_exception_is_retried_after_the_delay_of_the_policy(bench: Bench) -> None:
    job_id = bench.enqueue()
    bench.drain(raising(ValueError("odd"), wait=wait_fixed(3600)))
    job = bench.job(job_id)
    assert (job.status, job.attempts, job.claimed_by) == ("pending", 1, None)
    assert str(job.last_error).startswith("ValueError: odd\n")
    ((seconds,),) = bench.execute("SELECT extract(epoch FROM available_at - clock_timestamp()) FROM mdm.job")
    assert 3500 < seconds < 3600


def test_the_last_attempt_goes_to_dlq(bench: Bench) -> None:
    job_id = bench.enqueue(max_attempts=3)
    bench.drain(raising(ValueError("odd"), wait=wait_none()))
    job = bench.job(job_id)
    assert (job.status, job.attempts) == ("dlq", 3)
    assert bench.audit() == ["job_dlq"]


def test_a_snooze_comes_back_without_using_up_an_attempt(bench: Bench) -> None:
    job_id = bench.enqueue(max_attempts=1)
    bench.drain(raising(lambda: Snooze(timedelta(minutes=5))))
    job = bench.job(job_id)
    assert (job.status, job.attempts, job.last_error) == ("pending", 0, None)
    assert bench.execute("SELECT 1 FROM mdm.job WHERE available_at > now() + interval '4 minutes'")


def test_a_stop_ends_in_failed_and_a_dead_letter_in_dlq(bench: Bench) -> None:
    stopped = bench.enqueue()
    bench.drain(raising(Stop("the order was withdrawn")))
    dead = bench.enqueue()
    bench.drain(raising(DeadLetter("no such customer")))
    assert (bench.status(stopped), bench.job(stopped).last_error) == ("failed", "stopped: the order was withdrawn")
    assert (bench.status(dead), bench.job(dead).last_error) == ("dlq", "no such customer")
    assert bench.audit() == ["job_dlq"]


def test_what_the_retry_predicate_does_not_match_goes_to_dlq_at_once(bench: Bench) -> None:
    job_id = bench.enqueue()
    bench.drain(raising(KeyError("odd"), retry=retry_if_exception_type(OSError)))
    assert (bench.status(job_id), bench.job(job_id).attempts) == ("dlq", 1)


class Invoice(BaseModel):
    number: int


def test_a_payload_that_does_not_fit_goes_to_dlq_without_running(bench: Bench) -> None:
    handlers = Handlers()
    runs: list[Invoice] = []

    @handlers.register("reindex")
    def plain(payload: Invoice) -> None:
        runs.append(payload)

    @handlers.register("bulk_import")
    async def asynchronous(payload: Invoice) -> None:
        runs.append(payload)

    jobs = [bench.enqueue({"number": "many"}), bench.enqueue({}, kind="bulk_import")]
    bench.drain(handlers)
    assert [(bench.status(job), bench.job(job).attempts) for job in jobs] == [("dlq", 1), ("dlq", 1)]
    assert all("number" in str(bench.job(job).last_error) for job in jobs)
    assert runs == []


@pytest.mark.parametrize("kind", ["reindex", "bulk_import"], ids=["plain", "async"])
def test_an_exhausted_row_made_by_hand_goes_to_dlq_unrun_and_stops_no_other(bench: Bench, kind: str) -> None:
    handlers = Handlers()
    runs: list[Any] = []

    @handlers.register("reindex")
    def plain(payload: dict[str, Any], job: JobContext) -> None:
        runs.append(job.id)

    @handlers.register("bulk_import")
    async def asynchronous(payload: dict[str, Any], job: JobContext) -> None:
        runs.append(job.id)

    exhausted = bench.enqueue(kind=kind, max_attempts=2)
    bench.execute("UPDATE mdm.job SET attempts = max_attempts")
    others = bench.enqueue_many(5, kind=kind)
    bench.drain(handlers, concurrency=10)
    assert (bench.status(exhausted), runs.count(exhausted)) == ("dlq", 0)
    assert "no attempts left" in str(bench.job(exhausted).last_error)
    assert set(runs) == set(others)


def test_a_budget_lowered_below_the_attempts_of_a_running_job_ends_in_dlq(bench: Bench) -> None:
    handlers = Handlers()

    @handlers.register("reindex", wait=wait_none())
    def run(payload: dict[str, Any], job: JobContext) -> None:
        if job.attempt == 3:
            bench.execute("UPDATE mdm.job SET max_attempts = 1")
        raise ValueError("odd")

    job_id = bench.enqueue()
    bench.drain(handlers)
    assert (bench.status(job_id), bench.job(job_id).attempts) == ("dlq", 3)


def deep(frames: int) -> None:
    if not frames:
        raise RuntimeError("at the bottom")
    deep(frames - 1)


def sql_of_many_megabytes(url: str) -> None:
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT 1/0 AS " + "x" * 4_000_000))
    finally:
        engine.dispose()


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (lambda url: ValueError("x\x00y\ud800z"), "ValueError: x\\x00y\\ud800z"),
        (lambda url: ValueError("ä" * 20_000_000 + "the end"), "the end"),
        (lambda url: deep(900), "RuntimeError: at the bottom"),
        (lambda url: deep(3000), "RecursionError: maximum recursion depth exceeded"),
        (sql_of_many_megabytes, "division by zero"),
    ],
    ids=["NUL and lone surrogate", "40 MB", "900 frames", "recursion", "4 MB statement"],
)
def test_any_failure_is_written_and_counted_and_the_worker_goes_on(bench: Bench, raised: Any, expected: str) -> None:
    def run() -> BaseException:
        error = raised(bench.url)
        assert isinstance(error, BaseException)
        return error

    handlers = Handlers()

    @handlers.register("reindex", wait=wait_none())
    def fail(payload: dict[str, Any]) -> None:
        raise run()

    @handlers.register("bulk_import")
    def succeed(payload: dict[str, Any]) -> None:
        pass

    job_id, next_id = bench.enqueue(max_attempts=2), bench.enqueue(kind="bulk_import", priority=200)
    bench.drain(handlers, concurrency=1)
    job = bench.job(job_id)
    assert (job.status, job.attempts) == ("dlq", 2)
    assert expected in str(job.last_error)
    assert len(str(job.last_error).encode()) <= MAX_BYTES
    assert bench.status(next_id) == "done"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "expected"),
    [(Careless, "delay"), (Endless, "delay"), (Unspeakable, "Unspeakable")],
    ids=["a snooze without a delay", "a snooze beyond all time", "an error without a text"],
)
@pytest.mark.parametrize("sort", ["plain", "async"])
def test_an_exception_that_lacks_what_it_needs_fails_the_attempt_and_no_more(
    bench: Bench, error: type[Exception], expected: str, sort: str
) -> None:
    handlers = Handlers()

    if sort == "plain":

        @handlers.register("reindex", wait=wait_none())
        def plain(payload: dict[str, Any]) -> None:
            raise error

    else:

        @handlers.register("reindex", wait=wait_none())
        async def asynchronous(payload: dict[str, Any]) -> None:
            raise error

    job_id = bench.enqueue(max_attempts=2)
    bench.drain(handlers)
    job = bench.job(job_id)
    assert (job.status, job.attempts) == ("dlq", 2)
    assert expected in str(job.last_error)
