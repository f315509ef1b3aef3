"""``job.session``: the handler's rows, the jobs it enqueued and the outcome are one commit, or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from tenacity.wait import wait_none

from jobqueue import Handlers, JobContext, Snooze, enqueue
from tests.worker.conftest import Bench

INSERT = text("INSERT INTO public.note (text) VALUES (:text)")
Work = Callable[[Session, JobContext], object]


class AppBase(DeclarativeBase):
    pass


class Note(AppBase):
    __tablename__ = "note"

    text: Mapped[str] = mapped_column(primary_key=True)


@pytest.fixture(autouse=True)
def notes(bench: Bench) -> None:
    bench.create_notes()
    bench.execute("INSERT INTO public.note (text) VALUES ('taken')")


@pytest.fixture(params=["plain", "async"])
def working(request: pytest.FixtureRequest) -> Callable[[Work], Handlers]:
    """Makes handlers that do ``work`` with job.session, or with what is behind job.async_session."""

    def make(work: Work) -> Handlers:
        handlers = Handlers()

        @handlers.register("bulk_import")
        def nothing(payload: dict[str, Any]) -> None:
            pass

        if request.param == "plain":

            @handlers.register("reindex", wait=wait_none(), max_attempts=2)
            def plain(payload: dict[str, Any], job: JobContext) -> None:
                work(job.session, job)

        else:

            @handlers.register("reindex", wait=wait_none(), max_attempts=2)
            async def asynchronous(payload: dict[str, Any], job: JobContext) -> None:
                await job.async_session.run_sync(work, job)

        return handlers

    return make


def write(session: Session, job: JobContext) -> None:
    session.add(Note(text=f"note of {job.id}"))
    enqueue(session, "bulk_import", tenant_id=job.tenant_id)
    session.flush()


def test_rows_and_follow_up_jobs_commit_together_with_done(bench: Bench, working: Callable[[Work], Handlers]) -> None:
    job_id = bench.enqueue()
    bench.drain(working(write))
    assert bench.statuses() == {"done": 2}
    assert bench.notes() == [f"note of {job_id}", "taken"]
    # One transaction wrote all of it
    rows = bench.execute(
        "SELECT xmin FROM public.note WHERE text <> 'taken' UNION SELECT xmin FROM mdm.job WHERE job_kind = 'reindex'"
    )
    assert len(rows) == 1


def test_what_was_not_flushed_yet_is_written_too(bench: Bench, working: Callable[[Work], Handlers]) -> None:
    bench.enqueue()
    bench.drain(working(lambda session, job: session.add(Note(text="late"))))
    assert bench.notes() == ["late", "taken"]


@pytest.mark.parametrize("error", [ValueError, SystemExit, lambda: Snooze(timedelta(hours=1))])
def test_a_handler_that_raises_leaves_nothing(bench: Bench, working: Callable[[Work], Handlers], error: Any) -> None:
    def work(session: Session, job: JobContext) -> None:
        write(session, job)
        raise error()

    bench.enqueue(max_attempts=2)
    bench.drain(working(work))
    assert bench.notes() == ["taken"]
    assert bench.execute("SELECT 1 FROM mdm.job WHERE job_kind = 'bulk_import'") == []


@pytest.mark.parametrize(
    "misuse",
    [
        lambda session: session.commit(),
        lambda session: session.begin(),
        lambda session: session.begin().__enter__(),
    ],
    ids=["commit", "begin", "with begin"],
)
def test_a_handler_that_would_commit_gets_an_error_that_says_why(
    bench: Bench, working: Callable[[Work], Handlers], misuse: Callable[[Session], object]
) -> None:
    def work(session: Session, job: JobContext) -> None:
        write(session, job)
        misuse(session)

    job_id = bench.enqueue(max_attempts=1)
    bench.drain(working(work))
    assert bench.status(job_id) == "dlq"
    assert "SessionCommitted: job.session" in str(bench.job(job_id).last_error)
    assert bench.notes() == ["taken"]


@pytest.mark.parametrize(
    "tidy", [lambda session: session.close(), lambda session: session.__exit__(None, None, None)], ids=["close", "with"]
)
def test_closing_the_session_is_harmless(
    bench: Bench, working: Callable[[Work], Handlers], tidy: Callable[[Session], object]
) -> None:
    def work(session: Session, job: JobContext) -> None:
        write(session, job)
        tidy(session)

    job_id = bench.enqueue()
    bench.drain(working(work))
    assert bench.status(job_id) == "done"
    assert len(bench.notes()) == 2


def test_the_async_session_refuses_to_be_committed_and_bears_to_be_closed(bench: Bench) -> None:
    handlers = Handlers()
    steps: dict[str, Callable[[AsyncSession], Awaitable[object]]] = {
        "commit": lambda session: session.commit(),
        "begin": lambda session: session.begin().__aenter__(),
        "close": lambda session: session.close(),
    }

    @handlers.register("reindex")
    async def run(payload: dict[str, Any], job: JobContext) -> None:
        await job.async_session.execute(INSERT, {"text": payload["step"]})
        await steps[payload["step"]](job.async_session)

    jobs = {step: bench.enqueue({"step": step}, max_attempts=1) for step in steps}
    bench.drain(handlers)
    assert {step: bench.status(job) for step, job in jobs.items()} == {"commit": "dlq", "begin": "dlq", "close": "done"}
    assert bench.notes() == ["close", "taken"]


def swallowed_statement(session: Session, job: JobContext) -> None:
    write(session, job)
    with contextlib.suppress(DBAPIError):
        session.execute(text("SELECT no_such_column"))


def swallowed_flush(session: Session, job: JobContext) -> None:
    write(session, job)
    session.add(Note(text="taken"))
    with contextlib.suppress(DBAPIError):
        session.flush()


@pytest.mark.parametrize("swallow", [swallowed_statement, swallowed_flush])
def test_a_swallowed_database_error_fails_the_attempt_and_the_next_jobs_are_fine(
    bench: Bench, working: Callable[[Work], Handlers], swallow: Work
) -> None:
    bad = bench.enqueue(max_attempts=1)
    good = bench.enqueue_many(10, {"good": True})

    def work(session: Session, job: JobContext) -> None:
        (swallow if job.id == bad else write)(session, job)

    bench.drain(working(work), concurrency=1)
    assert bench.status(bad) == "dlq"
    error = str(bench.job(bad).last_error)
    assert "went on after a database error in job.session" in error
    assert "begin_nested()" in error
    assert {bench.status(job) for job in good} == {"done"}
    assert len(bench.notes()) == 11


def test_what_may_fail_goes_into_a_savepoint(bench: Bench, working: Callable[[Work], Handlers]) -> None:
    def work(session: Session, job: JobContext) -> None:
        write(session, job)
        with contextlib.suppress(DBAPIError), session.begin_nested():
            session.execute(INSERT, {"text": "taken"})

    job_id = bench.enqueue()
    bench.drain(working(work))
    assert bench.status(job_id) == "done"
    assert len(bench.notes()) == 2


def test_an_error_of_the_commit_itself_fails_the_attempt(bench: Bench, working: Callable[[Work], Handlers]) -> None:
    bench.execute("ALTER TABLE public.note DROP CONSTRAINT note_text_uk")
    bench.execute("ALTER TABLE public.note ADD CONSTRAINT late UNIQUE (text) DEFERRABLE INITIALLY DEFERRED")
    job_id = bench.enqueue(max_attempts=1)
    bench.drain(working(lambda session, job: session.execute(INSERT, {"text": "taken"})))
    assert bench.status(job_id) == "dlq"
    assert 'unique constraint "late"' in str(bench.job(job_id).last_error)


def test_a_rolled_back_session_still_writes_the_outcome(bench: Bench, working: Callable[[Work], Handlers]) -> None:
    def work(session: Session, job: JobContext) -> None:
        write(session, job)
        session.rollback()

    job_id = bench.enqueue()
    bench.drain(working(work))
    assert bench.status(job_id) == "done"
    assert bench.notes() == ["taken"]


def test_a_separate_session_keeps_what_it_wrote_when_the_attempt_fails(bench: Bench) -> None:
    handlers = Handlers()

    @handlers.register("reindex")
    def run(payload: dict[str, Any], job: JobContext) -> None:
        job.session.execute(INSERT, {"text": "lost"})
        with job.separate_session() as session:
            session.execute(INSERT, {"text": "kept"})
        raise ValueError("odd")

    bench.enqueue(max_attempts=1)
    bench.drain(handlers, concurrency=1)
    assert bench.statuses() == {"dlq": 1}
    assert bench.notes() == ["kept", "taken"]


def test_a_session_that_another_thread_still_uses_costs_the_attempt_and_not_the_slot(bench: Bench) -> None:
    handlers = Handlers()
    busy = threading.Event()

    @handlers.register("reindex", wait=wait_none())
    def run(payload: dict[str, Any], job: JobContext) -> None:
        if not payload:
            return
        session = job.session

        def use() -> None:
            with contextlib.suppress(Exception):
                busy.set()
                session.execute(text("SELECT pg_sleep(0.3)"))

        threading.Thread(target=use).start()
        busy.wait(20)

    bench.enqueue({"bad": True}, max_attempts=1)
    bench.enqueue_many(5)
    bench.drain(handlers, concurrency=1)
    assert bench.statuses().get("running", 0) == 0
    assert bench.statuses()["done"] >= 5


def test_concurrent_async_attempts_have_sessions_of_their_own(bench: Bench) -> None:
    handlers = Handlers()

    @handlers.register("reindex")
    async def run(payload: dict[str, Any], job: JobContext) -> None:
        await job.async_session.execute(INSERT, {"text": str(job.id)})
        await asyncio.sleep(0.02)
        if payload:
            raise ValueError("odd")

    bench.enqueue_many(8)
    bench.enqueue_many(4, {"bad": True}, max_attempts=1)
    bench.drain(handlers, concurrency=6)
    assert bench.statuses() == {"done": 8, "dlq": 4}
    assert len(bench.notes()) == 9
