"""``jobqueue stats``: how the queue is doing, and what needs care."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jobqueue.models import WorkerRecord
from tests.support.factories import WORKER, JobFactory, TenantFactory


def ago(**span):
    return datetime.now(UTC) - timedelta(**span)


@pytest.fixture
def add_worker(session):
    """Adds a worker that was just seen."""

    def add(kinds, *, tenants=None, seen_at=None, name=WORKER):
        session.add(
            WorkerRecord(
                id=name,
                host="test-host",
                pid=4711,
                kinds=kinds,
                tenants=tenants,
                concurrency=10,
                started_at=ago(hours=2, minutes=5, seconds=5),
                seen_at=seen_at or datetime.now(UTC),
                version="0.1.0",
            )
        )
        session.commit()

    return add


@pytest.fixture
def unhandled(run_json):
    return lambda: {entry["kind"]: entry["pending"] for entry in run_json("stats")["unhandled_kinds"]}


def test_an_empty_queue_is_told_as_such(run, run_json):
    assert run("stats").stdout == "no jobs\n\nno live workers\n"
    stats = run_json("stats")
    assert (stats["kinds"], stats["stale_running"], stats["workers"], stats["unhandled_kinds"]) == ([], 0, [], [])


def test_counts_jobs_per_kind_and_status_and_tells_how_late_the_oldest_due_job_is(run_json, session):
    JobFactory(available_at=ago(minutes=10))
    JobFactory(available_at=ago(minutes=5), priority=1)
    JobFactory(available_at=datetime.now(UTC) + timedelta(hours=1))
    JobFactory.create_batch(3, done=True)
    for trait in ("running", "failed", "dlq"):
        JobFactory(**{trait: True})
    JobFactory(job_kind="reindex", done=True)
    session.commit()
    mails, reindexing = run_json("stats")["kinds"]
    counts = {name: mails[name] for name in ("kind", "pending", "due", "running", "done", "failed", "dlq")}
    assert counts == {
        "kind": "email_send",
        "pending": 3,
        "due": 2,
        "running": 1,
        "done": 3,
        "failed": 1,
        "dlq": 1,
    }
    assert 600 <= mails["oldest_due_seconds"] < 660
    assert (reindexing["kind"], reindexing["done"], reindexing["oldest_due_at"]) == ("reindex", 1, None)


def test_text_has_a_line_per_kind_and_per_worker(run, session, add_worker):
    JobFactory(available_at=ago(minutes=10, seconds=1))
    add_worker(["email_send"])
    lines = [line.split() for line in run("stats").stdout.splitlines()]
    assert lines[0] == ["KIND", "PENDING", "DUE", "OLDEST", "DUE", "RUNNING", "DONE", "FAILED", "DLQ"]
    assert lines[1][:3] == ["email_send", "1", "1"]
    assert lines[1][3].startswith("10m")
    assert lines[4][:3] == [WORKER, "10", "2h5m"]
    assert len(lines) == 5


def test_counts_running_jobs_whose_claim_is_stale_by_the_setting(run, run_json, session, monkeypatch):
    JobFactory(stale=True)
    JobFactory(running=True, claimed_at=ago(seconds=90))
    JobFactory(running=True)
    session.commit()
    assert run_json("stats")["stale_running"] == 2
    monkeypatch.setenv("JOBQUEUE_STALE_AFTER", "PT120S")
    assert "1 running jobs are stale" in run("stats").stdout


def test_shows_only_workers_that_were_seen_lately(run_json, add_worker):
    add_worker(["email_send"], name="alive")
    add_worker(["email_send"], name="gone", seen_at=ago(minutes=3))
    (worker,) = run_json("stats")["workers"]
    assert (worker["id"], worker["kinds"], worker["concurrency"]) == ("alive", ["email_send"], 10)


def test_names_kinds_with_pending_jobs_that_no_live_worker_handles(run, unhandled, session, add_worker):
    JobFactory.create_batch(2, job_kind="reindex")
    JobFactory(job_kind="bulk_import", available_at=datetime.now(UTC) + timedelta(hours=1))
    JobFactory(job_kind="virus_scan", done=True)
    session.commit()
    assert unhandled() == {"reindex": 2, "bulk_import": 1}
    add_worker(["reindex"], name="gone", seen_at=ago(minutes=3))
    assert unhandled() == {"reindex": 2, "bulk_import": 1}
    add_worker(["reindex", "virus_scan"], name="alive")
    assert unhandled() == {"bulk_import": 1}
    assert "no live worker handles bulk_import: 1 pending" in run("stats").stdout


def test_kinds_that_no_live_worker_handles_are_one_block(run, session):
    JobFactory.create_batch(2, job_kind="reindex")
    JobFactory(job_kind="bulk_import")
    session.commit()
    assert run("stats").stdout.endswith(
        "\n\nno live workers\n\n"
        "no live worker handles these kinds; start one that has handlers for them\n"
        "  bulk_import: 1 pending\n"
        "  reindex: 2 pending\n"
    )


def test_a_worker_for_some_tenants_leaves_the_jobs_of_others_unhandled(unhandled, session, add_worker):
    served, other = TenantFactory().id, TenantFactory().id
    JobFactory.create_batch(2, job_kind="reindex", tenant_id=served)
    JobFactory(job_kind="reindex", tenant_id=other)
    add_worker(["reindex"], tenants=[served], name="one")
    assert unhandled() == {"reindex": 1}
    add_worker(["reindex"], tenants=[other], name="two")
    assert unhandled() == {}
