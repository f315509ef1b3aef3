"""What a worker claims, what stops its start, and when a draining worker ends."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import make_url
from sqlalchemy.orm import Session
from tenacity.wait import wait_none

from jobqueue import Handlers, JobContext, JobStatus, Snooze, Tenant, enqueue, migrations
from jobqueue.errors import DatabaseUnavailable, HandlerError, SchemaOutOfDate, SettingsError, UnknownKind
from jobqueue.worker import Worker
from tests.support.waiting import wait_until
from tests.support.worker import drain, make_worker, running
from tests.worker.conftest import Bench


def handlers_for(*kinds: str, seen: list[UUID] | None = None) -> Handlers:
    handlers = Handlers()
    for kind in kinds:

        @handlers.register(kind)
        def run(payload: dict[str, Any], job: JobContext) -> None:
            if seen is not None:
                seen.append(job.id)

    return handlers


def other_tenant(bench: Bench) -> UUID:
    with Session(bench.engine, expire_on_commit=False) as session, session.begin():
        tenant = Tenant(name="Other")
        session.add(tenant)
    return tenant.id


def test_kinds_limit_what_is_claimed(bench: Bench) -> None:
    wanted, other = bench.enqueue(), bench.enqueue(kind="bulk_import")
    bench.drain(handlers_for("reindex", "bulk_import"), kinds=["reindex"])
    assert (bench.status(wanted), bench.status(other)) == ("done", "pending")


def test_tenants_limit_what_is_claimed(bench: Bench) -> None:
    second, third = other_tenant(bench), other_tenant(bench)
    jobs = [bench.enqueue(), bench.enqueue(tenant_id=second), bench.enqueue(tenant_id=third)]
    bench.drain(handlers_for("reindex"), tenants=[bench.tenant_id, third])
    assert [bench.status(job) for job in jobs] == ["done", "pending", "done"]


def test_an_important_job_runs_first_and_a_delayed_one_not_yet(bench: Bench) -> None:
    seen: list[UUID] = []
    usual = bench.enqueue()
    later = bench.enqueue(priority=-5, delay=timedelta(hours=1))
    important = bench.enqueue(priority=1)
    bench.drain(handlers_for("reindex", seen=seen), concurrency=1)
    assert seen == [important, usual]
    assert bench.status(later) == "pending"


def test_kinds_without_a_handler_wait_unspent_until_a_worker_with_one_comes(bench: Bench) -> None:
    """A rolling deploy: yesterday's worker must neither take nor spend the jobs of a new kind."""
    new = bench.enqueue_many(100, kind="virus_scan", max_attempts=1, priority=1)
    bench.execute("UPDATE mdm.job SET last_error = 'a retry of the new kind' WHERE id = :id", id=new[0])
    old = bench.enqueue()
    with running(handlers_for("reindex"), bench.url):
        bench.wait_for(old, JobStatus.DONE)
        bench.drain(handlers_for("reindex"))
        assert bench.execute("SELECT DISTINCT status::text, attempts FROM mdm.job WHERE job_kind = 'virus_scan'") == [
            ("pending", 0)
        ]
        with running(handlers_for("reindex", "virus_scan"), bench.url):
            wait_until(lambda: bench.statuses() == {"done": 101})
    assert bench.execute("SELECT DISTINCT attempts FROM mdm.job") == [(1,)]


def test_a_handler_for_a_kind_that_the_enum_lacks_stops_the_start(bench: Bench) -> None:
    job = bench.enqueue()
    with pytest.raises(UnknownKind, match=r'op\.add_job_kind\("ocr_extract"\)'):
        bench.drain(handlers_for("reindex", "ocr_extract"))
    assert bench.status(job) == "pending"
    assert bench.execute("SELECT id FROM mdm.job_worker") == []
    bench.drain(handlers_for("reindex", "ocr_extract"), kinds=["reindex"])
    assert bench.status(job) == "done"


def test_a_database_without_the_schema_stops_the_start(empty_database_url: str) -> None:
    with pytest.raises(SchemaOutOfDate, match="jobqueue db upgrade"):
        drain(handlers_for("reindex"), empty_database_url)


def test_a_schema_of_an_earlier_revision_stops_the_start(empty_database_url: str) -> None:
    migrations.upgrade(make_url(empty_database_url), to="jobqueue_0001")
    with pytest.raises(SchemaOutOfDate, match=r"jobqueue_0001.*jobqueue db upgrade"):
        drain(handlers_for("reindex"), empty_database_url)


@pytest.mark.parametrize("server", ["127.0.0.1:1", "no-such-host.invalid", "/nowhere"])
def test_a_database_that_cannot_be_reached_stops_the_start(server: str) -> None:
    url = f"postgresql://ada:S3CRET@{server}/db" if "/" not in server else "postgresql:///db?host=/nowhere"
    with pytest.raises(DatabaseUnavailable) as caught:
        drain(handlers_for("reindex"), f"{url}{'&' if '?' in url else '?'}password=S3CRET")
    assert "cannot be reached" in str(caught.value)
    assert "S3CRET" not in str(caught.value)


def test_a_worker_without_handlers_or_with_kinds_it_has_none_for_is_refused(database_url: str) -> None:
    with pytest.raises(HandlerError, match="no handlers"):
        make_worker(Handlers(), database_url)
    with pytest.raises(HandlerError, match=r"virus_scan.*handlers for reindex"):
        make_worker(handlers_for("reindex"), database_url, kinds=["virus_scan"])


def test_a_worker_without_a_database_url_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("JOBQUEUE_DATABASE_URL", raising=False)
    with pytest.raises(SettingsError, match="DATABASE_URL is not set"):
        Worker(handlers_for("reindex"))


def test_draining_includes_follow_up_jobs_retries_and_snoozes_that_are_due(bench: Bench) -> None:
    handlers = Handlers()
    runs: list[str] = []

    @handlers.register("reindex", wait=wait_none())
    def run(payload: dict[str, Any], job: JobContext) -> None:
        step = payload["step"]
        runs.append(step)
        if step == "follow-up" and payload["left"]:
            enqueue(job.session, job.kind, payload | {"left": payload["left"] - 1}, tenant_id=job.tenant_id)
        if step == "retry" and job.attempt < 4:
            raise ValueError("not yet")
        if step == "snooze" and runs.count("snooze") < 4:
            raise Snooze(timedelta(0))

    for step in ("follow-up", "retry", "snooze"):
        bench.enqueue({"step": step, "left": 5})
    bench.drain(handlers)
    assert bench.statuses() == {"done": 8}
    assert (runs.count("follow-up"), runs.count("retry"), runs.count("snooze")) == (6, 4, 4)


def test_draining_waits_for_what_runs_and_not_for_what_is_due_later(bench: Bench) -> None:
    handlers = Handlers()
    go = threading.Event()

    @handlers.register("reindex")
    def run(payload: dict[str, Any]) -> None:
        assert go.wait(20)

    job, later = bench.enqueue(), bench.enqueue(delay=timedelta(hours=1))
    with running(handlers, bench.url, drain=True) as worker:
        bench.wait_for(job, JobStatus.RUNNING)
        assert worker.alive
        go.set()
        worker.wait()
    assert (bench.status(job), bench.status(later)) == ("done", "pending")


def test_a_worker_is_known_while_it_runs(bench: Bench) -> None:
    tenant = uuid4()
    with running(handlers_for("reindex"), bench.url, tenants=[tenant], concurrency=3, stale_after=1) as worker:
        query = "SELECT id, kinds, tenants, concurrency, version, seen_at FROM mdm.job_worker"
        wait_until(lambda: bench.execute(query))
        (row,) = bench.execute(query)
        assert (row.id, row.kinds, row.tenants, row.concurrency) == (worker.id, ["reindex"], [tenant], 3)
        wait_until(lambda: bench.execute(query)[0].seen_at > row.seen_at, what="a sign of life")
