"""Keys: a taken one is no error, the result names the job that has it, and the transaction goes on."""

from __future__ import annotations

from importlib import import_module
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from jobqueue import SYSTEM_TENANT_ID, Enqueued, Job, NewJob, enqueue, enqueue_many, replay
from jobqueue.errors import DedupKeyTaken
from jobqueue.states import ACTIVE, JobStatus
from tests.enqueue.ways import jobs
from tests.support.factories import new_job

TRAITS: dict[JobStatus, dict[str, bool]] = {
    status: {} if status is JobStatus.PENDING else {status.value: True} for status in JobStatus
}
every_status = pytest.mark.parametrize("status", list(JobStatus))


def new(kind: str = "email_send", **options: Any) -> NewJob:
    return NewJob(kind=kind, **{"tenant_id": SYSTEM_TENANT_ID} | options)


def put(session: Session, **options: Any) -> Enqueued:
    return enqueue_many(session, [new(**options)])[0]


@every_status
def test_an_idempotency_key_holds_as_long_as_its_row(session: Session, status: JobStatus) -> None:
    holder = new_job(idempotency_key="k", **TRAITS[status])
    assert put(session, idempotency_key="k") == Enqueued(holder.id, created=False)
    session.delete(holder)
    session.flush()
    assert put(session, idempotency_key="k").created


@every_status
def test_a_dedup_key_holds_only_while_pending_or_running(session: Session, status: JobStatus) -> None:
    holder = new_job(dedup_key="k", **TRAITS[status])
    result = put(session, dedup_key="k")
    assert result.created is (status not in ACTIVE)
    assert (result.id == holder.id) is (status in ACTIVE)


def test_of_jobs_with_one_dedup_key_the_active_one_is_named(session: Session) -> None:
    for status in ("done", "dlq"):
        new_job(dedup_key="k", **{status: True})
    holder = new_job(dedup_key="k")
    new_job(dedup_key="k", failed=True)
    assert put(session, dedup_key="k") == Enqueued(holder.id, created=False)


@pytest.mark.parametrize("key", ["idempotency_key", "dedup_key"])
def test_keys_count_within_tenant_and_kind(session: Session, tenant_id: UUID, key: str) -> None:
    results = enqueue_many(
        session,
        [
            new(**{key: "k"}),
            new("reindex", **{key: "k"}),
            new(tenant_id=tenant_id, **{key: "k"}),
            new(**{key: "K"}),
            new(**{key: "k "}),
        ],
    )
    assert all(result.created for result in results)


def test_the_two_sorts_of_key_do_not_meet(session: Session) -> None:
    assert put(session, idempotency_key="k").created
    assert put(session, dedup_key="k").created


@pytest.mark.parametrize("key", ["idempotency_key", "dedup_key"])
def test_equal_keys_in_one_call_are_one_job(session: Session, key: str) -> None:
    results = enqueue_many(session, [new(**{key: name}, payload={"n": n}) for n, name in enumerate("abaab")])
    assert [result.created for result in results] == [True, True, False, False, False]
    ids = [result.id for result in results]
    assert ids == [ids[0], ids[1], ids[0], ids[0], ids[1]]
    assert session.get_one(Job, ids[0]).payload == {"n": 0}


def test_keys_that_cross_in_one_call(session: Session) -> None:
    results = enqueue_many(
        session,
        [
            new(idempotency_key="a", dedup_key="x"),
            new(idempotency_key="b", dedup_key="x"),
            new(idempotency_key="a", dedup_key="y"),
            new(idempotency_key="c", dedup_key="y"),
            new(),
            new(),
        ],
    )
    ids = [result.id for result in results]
    assert [result.created for result in results] == [True, False, False, True, True, True]
    assert (ids[1], ids[2]) == (ids[0], ids[0])
    assert len(set(ids)) == 4


def test_of_two_holders_that_of_the_idempotency_key_is_named(session: Session) -> None:
    by_dedup, by_idempotency = put(session, dedup_key="d"), put(session, idempotency_key="i")
    assert put(session, idempotency_key="i", dedup_key="d") == Enqueued(by_idempotency.id, created=False)
    assert put(session, idempotency_key="other", dedup_key="d") == Enqueued(by_dedup.id, created=False)


def test_the_transaction_goes_on_after_a_taken_key(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        first = put(session, idempotency_key="k", payload={"n": 1})
        assert put(session, idempotency_key="k", payload={"n": 2}) == Enqueued(first.id, created=False)
        session.add(Job(tenant_id=SYSTEM_TENANT_ID, job_kind="reindex", payload={"n": 3}))
    assert [job.payload["n"] for job in jobs(engine)] == [1, 3]


def test_results_come_in_the_order_of_the_jobs(session: Session) -> None:
    taken = put(session, idempotency_key="b")
    results = enqueue_many(session, [new(idempotency_key=key, payload={"key": key}) for key in "cbad"])
    assert results[1] == Enqueued(taken.id, created=False)
    for result, key in zip(results, "cbad", strict=True):
        if result.created:
            assert session.get_one(Job, result.id).payload == {"key": key}


@pytest.mark.parametrize("count", [0, 1, 12])
def test_many_jobs_go_in_several_statements(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, statements: list[str], count: int
) -> None:
    monkeypatch.setattr(import_module("jobqueue.enqueue"), "_CHUNK", 5)
    with Session(engine) as session, session.begin():
        results = enqueue_many(session, (new(payload={"n": n}) for n in range(count)))
    assert [job.payload for job in jobs(engine)] == [{"n": n} for n in range(count)]
    assert [job.id for job in jobs(engine)] == [result.id for result in results]
    assert sum(statement.startswith("INSERT") for statement in statements) == -(-count // 5)


def test_every_option_is_stored(session: Session, tenant_id: UUID) -> None:
    result = enqueue(
        session,
        "reindex",
        {"a": 1},
        tenant_id=tenant_id,
        priority=-5,
        max_attempts=3,
        created_by="ada",
        idempotency_key="i",
        dedup_key="d",
    )
    job = session.get_one(Job, result.id)
    assert (job.tenant_id, job.job_kind, job.payload, job.priority, job.max_attempts) == (
        tenant_id,
        "reindex",
        {"a": 1},
        -5,
        3,
    )
    assert (job.created_by, job.idempotency_key, job.dedup_key) == ("ada", "i", "d")
    assert (job.status, job.attempts, job.claimed_by, job.last_error) == (JobStatus.PENDING, 0, None, None)


def test_a_dead_job_whose_dedup_key_was_taken_cannot_be_replayed(session: Session) -> None:
    dead = new_job(dlq=True, dedup_key="k")
    holder = put(session, dedup_key="k")
    assert holder.created
    with pytest.raises(DedupKeyTaken, match=str(holder.id)) as refusal:
        replay(session, dead.id, actor="ada")
    assert (refusal.value.job_id, refusal.value.holder) == (dead.id, holder.id)
    session.refresh(dead)
    assert (dead.status, dead.attempts) == (JobStatus.DLQ, 8)


def test_at_repeatable_read_a_key_taken_before_the_snapshot_is_found(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        holder = put(session, idempotency_key="k")
    with Session(engine.execution_options(isolation_level="REPEATABLE READ")) as session, session.begin():
        session.scalars(select(Job)).all()
        assert put(session, idempotency_key="k") == Enqueued(holder.id, created=False)
        assert put(session, idempotency_key="other").created


@pytest.mark.parametrize("key", ["idempotency_key", "dedup_key"])
def test_at_repeatable_read_a_key_taken_since_the_snapshot_is_a_serialization_failure(engine: Engine, key: str) -> None:
    with Session(engine.execution_options(isolation_level="REPEATABLE READ")) as session:
        session.scalars(select(Job)).all()
        with Session(engine) as other, other.begin():
            put(other, **{key: "k"})
        with pytest.raises(OperationalError) as failure:
            put(session, **{key: "k"})
        assert getattr(failure.value.orig, "sqlstate", None) == "40001"
