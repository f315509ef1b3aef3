"""Cancel, replay and discard as operators ask for them: for one job, for several, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from jobqueue import SYSTEM_TENANT_ID, AuditEntry, Base, Job, JobFilter, cancel, discard, replay
from jobqueue.errors import InvalidJob, JobNotFound, TransitionRefused
from jobqueue.repository import Changed
from jobqueue.states import JobStatus
from tests.repository.steps import OTHER_WORKER, audit, claim, fresh, row, statuses
from tests.support.factories import new_job
from tests.support.locks import running, wait_for_blocked


class Operation(Protocol):
    def __call__(self, session: Session, which: Any, *, actor: str) -> Changed: ...


OPERATIONS: dict[str, tuple[Operation, frozenset[JobStatus], JobStatus | None]] = {
    "cancel": (cancel, frozenset({JobStatus.PENDING}), JobStatus.FAILED),
    "replay": (replay, frozenset({JobStatus.FAILED, JobStatus.DLQ}), JobStatus.PENDING),
    "discard": (discard, frozenset({JobStatus.FAILED, JobStatus.DLQ}), None),
}
EACH = [(name, status) for name in OPERATIONS for status in JobStatus]
every_operation = pytest.mark.parametrize("name", OPERATIONS)


def make(status: JobStatus, **values: Any) -> Job:
    return new_job(**({} if status is JobStatus.PENDING else {status.value: True}), **values)


def suitable(name: str, **values: Any) -> Job:
    """A job for which the operation is possible."""
    return make(JobStatus.PENDING if name == "cancel" else JobStatus.DLQ, **values)


@pytest.mark.parametrize(("name", "status"), EACH)
def test_one_job_is_changed_and_audited_or_refused(session: Session, name: str, status: JobStatus) -> None:
    operation, possible, result = OPERATIONS[name]
    job_id = make(status).id
    before = row(session, job_id)
    if status in possible:
        assert operation(session, job_id, actor="ada") == Changed([job_id])
        assert statuses(session) == ({job_id: result} if result else {})
        assert audit(session) == [(name, job_id, "ada")]
        entry = session.scalars(select(AuditEntry)).one()
        assert (entry.tenant_id, entry.details) == (SYSTEM_TENANT_ID, {"kind": "email_send", "was": status.value})
    else:
        with pytest.raises(TransitionRefused, match=f"job {job_id} is {status.value}; only a"):
            operation(session, job_id, actor="ada")
        assert row(session, job_id) == before
        assert audit(session) == []


@every_operation
def test_a_job_that_does_not_exist_is_not_found(session: Session, name: str) -> None:
    missing = uuid4()
    with pytest.raises(JobNotFound) as refusal:
        OPERATIONS[name][0](session, missing, actor="ada")
    assert refusal.value.job_id == missing


@every_operation
def test_of_several_ids_the_refused_ones_are_named_and_the_others_changed(session: Session, name: str) -> None:
    good = [suitable(name).id for _ in range(3)]
    running_job, missing = new_job(running=True).id, uuid4()
    changed = OPERATIONS[name][0](session, iter([*good, missing, running_job, good[0]]), actor="ada")
    assert sorted(changed.ids) == sorted(good)
    assert {job_id: type(refusal) for job_id, refusal in changed.refused.items()} == {
        missing: JobNotFound,
        running_job: TransitionRefused,
    }
    assert sorted(str(job_id) for _, job_id, _ in audit(session)) == sorted(str(job_id) for job_id in good)


@every_operation
def test_no_ids_change_nothing(session: Session, name: str) -> None:
    suitable(name)
    assert OPERATIONS[name][0](session, [], actor="ada") == Changed([])


def test_more_ids_than_a_statement_takes_parameters(session: Session) -> None:
    good = new_job(dlq=True).id
    changed = replay(session, [good, *(UUID(int=n) for n in range(70_000))], actor="ada")
    assert changed.ids == [good]
    assert len(changed.refused) == 70_000


@every_operation
@pytest.mark.parametrize("which", ["not an id", ["1"], [1], [None], 5, None])
def test_what_is_no_id_is_refused(session: Session, name: str, which: object) -> None:
    with pytest.raises(InvalidJob, match="job id"):
        OPERATIONS[name][0](session, which, actor="ada")


@every_operation
@pytest.mark.parametrize("actor", ["", "a\x00b", "a" * 1025])
def test_an_actor_that_cannot_be_stored_is_refused_before_anything_is_changed(
    session: Session, name: str, actor: str
) -> None:
    job = suitable(name)
    with pytest.raises(InvalidJob):
        OPERATIONS[name][0](session, job.id, actor=actor)
    assert statuses(session) == {job.id: job.status}


@every_operation
def test_the_change_and_its_audit_rows_go_with_the_transaction(session: Session, name: str) -> None:
    job = suitable(name)
    session.commit()
    before = row(session, job.id)
    OPERATIONS[name][0](session, JobFilter(), actor="ada")
    session.rollback()
    assert row(session, job.id) == before
    assert audit(session) == []


@every_operation
def test_a_job_that_was_just_added_is_found(engine: Engine, name: str) -> None:
    with Session(engine) as session:
        job = Job(tenant_id=SYSTEM_TENANT_ID, job_kind="email_send", id=uuid4())
        session.add(job)
        if name == "cancel":
            assert cancel(session, job.id, actor="ada").ids == [job.id]
        else:
            with pytest.raises(TransitionRefused, match="is pending"):
                OPERATIONS[name][0](session, job.id, actor="ada")


@pytest.mark.parametrize("name", ["cancel", "replay"])
def test_a_loaded_job_shows_its_new_state(session: Session, name: str) -> None:
    job = suitable(name)
    OPERATIONS[name][0](session, job.id, actor="ada")
    loaded = {key: value for key, value in vars(job).items() if not key.startswith("_")}
    assert loaded["status"] == OPERATIONS[name][2]
    assert loaded == row(session, job.id) | {key: loaded[key] for key in loaded.keys() - row(session, job.id).keys()}


def test_a_loaded_job_is_gone_after_it_was_discarded(session: Session) -> None:
    job = new_job(dlq=True)
    job_id = job.id
    discard(session, job_id, actor="ada")
    assert session.get(Job, job_id) is None


def test_a_cancelled_job_says_by_whom_and_why(session: Session) -> None:
    jobs = [new_job(), new_job()]
    cancel(session, jobs[0].id, actor="ada", reason="wrong address")
    cancel(session, jobs[1].id, actor="bob")
    assert [job.last_error for job in jobs] == ["cancelled by ada: wrong address", "cancelled by bob"]
    assert all(job.completed_at is not None for job in jobs)


def test_a_replayed_job_is_due_with_a_fresh_budget_and_its_last_error(session: Session) -> None:
    job = new_job(dlq=True, priority=7, payload={"a": 1}, available_at=datetime(2900, 1, 1, tzinfo=UTC))
    started_at = row(session, job.id)["started_at"]
    replay(session, job.id, actor="ada")
    found = fresh(session, job.id)
    assert (found.attempts, found.max_attempts, found.priority, found.payload) == (0, 8, 7, {"a": 1})
    assert found.last_error == "ConnectionRefusedError: mail.example.com:25"
    assert (found.completed_at, found.claimed_by, found.claimed_at) == (None, None, None)
    claimed = claim(session)
    assert (claimed.id, claimed.attempt) == (job.id, 1)
    assert claimed.token.started_at > started_at


@pytest.mark.parametrize("first", ["claim", "cancel"])
def test_of_claim_and_cancel_the_first_to_commit_wins(engine: Engine, session: Session, first: str) -> None:
    job_id = new_job().id
    session.commit()

    def cancelling() -> object:
        with Session(engine) as other, other.begin():
            try:
                return cancel(other, job_id, actor="ada").ids
            except TransitionRefused as refusal:
                return str(refusal)

    if first == "claim":
        claim(session)
        with running(cancelling) as cancelled:
            wait_for_blocked(engine)
            session.commit()
            assert "is running" in str(cancelled.result(timeout=30))
        assert statuses(session) == {job_id: JobStatus.RUNNING}
    else:
        assert cancelling() == [job_id]
        assert audit(session) == [("cancel", job_id, "ada")]


@every_operation
def test_of_two_operators_one_changes_the_job(engine: Engine, session: Session, name: str) -> None:
    job_id = suitable(name).id
    session.commit()
    operation = OPERATIONS[name][0]

    def second() -> Changed:
        with Session(engine) as other, other.begin():
            return operation(other, [job_id], actor="bob")

    operation(session, job_id, actor="ada")
    with running(second) as waiting:
        wait_for_blocked(engine)
        session.commit()
        changed = waiting.result(timeout=30)
    assert changed.ids == []
    assert set(changed.refused) == {job_id}
    assert audit(session) == [(name, job_id, "ada")]


ASYNC: dict[str, Callable[[Session, UUID], object]] = {
    "cancel": lambda session, job_id: cancel(session, job_id, actor="ada"),
    "replay": lambda session, job_id: replay(session, job_id, actor="ada"),
    "discard": lambda session, job_id: discard(session, job_id, actor="ada"),
}


@pytest.mark.parametrize("name", ASYNC)
async def test_async_callers_use_run_sync(session: Session, any_async_engine: AsyncEngine, name: str) -> None:
    ids = [suitable(name, dedup_key=None if n else "k").id for n in range(3)]
    session.commit()
    async with AsyncSession(any_async_engine) as async_session, async_session.begin():
        changed = await async_session.run_sync(OPERATIONS[name][0], ids, actor="ada")
        with pytest.raises(JobNotFound):
            await async_session.run_sync(ASYNC[name], uuid4())
    assert sorted(changed.ids) == ids
    assert len(audit(session)) == 3


def test_a_session_may_be_bound_by_base(engine: Engine, session: Session) -> None:
    jobs = [new_job(dlq=True), new_job(dlq=True, dedup_key="k"), new_job(dlq=True, dedup_key="k")]
    ids = [job.id for job in jobs]
    session.commit()
    with Session(binds={Base: engine}) as bound, bound.begin():
        changed = replay(bound, [*ids, uuid4()], actor="ada")
    assert changed.ids == ids[:2]


def test_what_runs_is_left_alone_by_a_filter(session: Session) -> None:
    held = new_job()
    claim(session, OTHER_WORKER)
    for operation, _, _ in OPERATIONS.values():
        assert operation(session, JobFilter(), actor="ada") == Changed([])
    assert statuses(session)[held.id] is JobStatus.RUNNING
