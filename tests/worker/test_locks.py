"""What attempts lock and what they hold: neither their own rows nor those of the application get in their way."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from tenacity.wait import wait_none

from jobqueue import Handlers, JobContext, JobStatus
from jobqueue.errors import SessionCommitted
from tests.support.waiting import wait_until
from tests.support.worker import running
from tests.worker.conftest import Bench


def create_documents(bench: Bench) -> None:
    """A table of the application that refers to jobs."""
    bench.execute("CREATE TABLE public.document (job_id uuid REFERENCES mdm.job)")


def test_a_handler_whose_uncommitted_row_refers_to_its_job_keeps_its_claim(bench: Bench) -> None:
    create_documents(bench)
    handlers = Handlers()

    @handlers.register("reindex")
    def write_and_work_on(payload: dict[str, Any], job: JobContext) -> None:
        job.session.execute(text("INSERT INTO public.document VALUES (:id)"), {"id": job.id})
        renewals = [bench.job(job.id).claimed_at]
        wait_until(lambda: renewals.append(bench.job(job.id).claimed_at) or len(set(renewals)) > 3, what="renewals")

    job_id = bench.enqueue(max_attempts=1)
    bench.drain(handlers, stale_after=1)
    assert bench.status(job_id) == "done"
    assert bench.execute("SELECT count(*) FROM public.document") == [(1,)]


def test_a_transaction_of_the_application_that_refers_to_a_job_holds_up_neither_claim_nor_outcome(bench: Bench) -> None:
    create_documents(bench)
    handlers = Handlers()

    @handlers.register("reindex")
    def run(payload: dict[str, Any]) -> None:
        pass

    job_id = bench.enqueue()
    with bench.engine.begin() as connection:
        connection.execute(text("INSERT INTO public.document VALUES (:id)"), {"id": job_id})
        bench.drain(handlers)
        assert bench.status(job_id) == "done"


def test_what_a_timed_out_handler_has_locked_is_free_for_the_next_attempt(bench: Bench) -> None:
    bench.create_notes()
    bench.execute("INSERT INTO public.note VALUES (NULL, 'contended')")
    handlers = Handlers()
    go_on = threading.Event()

    @handlers.register("reindex", timeout=timedelta(seconds=0.5), wait=wait_none())
    def update_and_hang_once(payload: dict[str, Any], job: JobContext) -> None:
        job.session.execute(text("UPDATE public.note SET job_id = :id"), {"id": job.id})
        if job.attempt == 1:
            go_on.wait(30)

    bench.enqueue_many(6, max_attempts=100)
    try:
        with running(handlers, bench.url, concurrency=2):
            wait_until(
                lambda: bench.statuses() == {"done": 6},
                40,
                what="all jobs, also those that wait for a lock of one that hung",
            )
    finally:
        go_on.set()


def test_a_handler_that_was_cut_off_cannot_write_any_more(bench: Bench) -> None:
    bench.create_notes()
    handlers = Handlers()
    late: list[BaseException] = []
    over = threading.Event()

    @handlers.register("reindex", timeout=timedelta(seconds=0.3), max_attempts=1)
    def outlive_the_limit(payload: dict[str, Any], job: JobContext) -> None:
        while not job.cancelled:
            time.sleep(0.01)
        try:
            job.session.execute(text("INSERT INTO public.note VALUES (:id, 'late')"), {"id": job.id})
        except BaseException as error:
            late.append(error)
            raise
        finally:
            over.set()

    job_id = bench.enqueue(max_attempts=1)
    bench.drain(handlers)
    assert over.wait(10)
    assert "the attempt is over" in str(late[0])
    assert (bench.status(job_id), bench.notes()) == ("dlq", [])


@pytest.mark.parametrize("way", ["commit", "transaction", "begin"])
def test_no_way_to_commit_the_lent_session_is_open(bench: Bench, way: str) -> None:
    bench.create_notes()
    handlers = Handlers()
    seen: list[BaseException] = []

    @handlers.register("reindex")
    def commit(payload: dict[str, Any], job: JobContext) -> None:
        job.session.execute(text("INSERT INTO public.note VALUES (:id, 'early')"), {"id": job.id})
        transaction = job.session.get_transaction()
        assert transaction is not None
        ways = {"commit": job.session.commit, "transaction": transaction.commit, "begin": job.session.begin}
        try:
            ways[way]()
        except SessionCommitted as error:
            seen.append(error)
            raise

    job_id = bench.enqueue(max_attempts=1)
    bench.drain(handlers)
    assert len(seen) == 1
    assert (bench.status(job_id), bench.notes()) == ("dlq", [])


def test_an_outcome_that_a_trigger_refuses_holds_up_no_other(bench: Bench) -> None:
    handlers = Handlers()

    @handlers.register("reindex")
    def run(payload: dict[str, Any]) -> None:
        pass

    refused, *others = bench.enqueue_many(6)
    bench.execute(
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$"
    )
    bench.execute(
        "CREATE TRIGGER refuse BEFORE UPDATE ON mdm.job FOR EACH ROW "
        f"WHEN (NEW.status = 'done' AND NEW.id = '{refused}') EXECUTE FUNCTION public.refuse()"
    )
    bench.drain(handlers)
    assert [bench.status(job) for job in others] == ["done"] * 5
    assert bench.job(refused).status is JobStatus.RUNNING
