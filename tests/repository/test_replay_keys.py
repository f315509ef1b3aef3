"""Replay where a dedup_key is in the way: that job is refused with the holder's name, and stops no other."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session

from jobqueue import JobFilter, enqueue, replay
from jobqueue.errors import DedupKeyTaken
from jobqueue.states import JobStatus
from tests.repository.steps import audit, row, statuses
from tests.support.factories import new_job


@pytest.mark.parametrize("by", ["ids", "filter"])
def test_those_whose_key_is_taken_are_refused_and_the_others_replayed(session: Session, by: str) -> None:
    plain = [new_job(dlq=True).id for _ in range(3)]
    taken = [new_job(dlq=True, dedup_key=f"taken {n}").id for n in range(3)]
    free = [new_job(dlq=True, dedup_key=f"free {n}").id for n in range(3)]
    holders = [new_job(dedup_key=f"taken {n}", running=n == 1).id for n in range(3)]
    new_job(dedup_key="free 1", job_kind="reindex")
    before = [row(session, job_id) for job_id in taken]

    which = JobFilter() if by == "filter" else [*taken, *free, *plain]
    changed = replay(session, which, actor="ada")

    assert set(changed.ids) == {*plain, *free}
    assert set(changed.refused) == set(taken)
    for job_id, holder in zip(taken, holders, strict=True):
        refusal = changed.refused[job_id]
        assert isinstance(refusal, DedupKeyTaken)
        assert refusal.holder == holder
        assert str(holder) in str(refusal)
    assert [row(session, job_id) for job_id in taken] == before
    assert {job_id for _, job_id, _ in audit(session)} == {*plain, *free}


def test_of_dead_jobs_with_one_key_the_oldest_returns(session: Session) -> None:
    jobs = [new_job(dlq=True, dedup_key="k").id for _ in range(3)]
    changed = replay(session, jobs, actor="ada")
    assert changed.ids == jobs[:1]
    assert {job_id: getattr(refusal, "holder", None) for job_id, refusal in changed.refused.items()} == {
        jobs[1]: jobs[0],
        jobs[2]: jobs[0],
    }
    assert list(statuses(session).values()).count(JobStatus.PENDING) == 1


def test_the_transaction_goes_on_after_a_refusal(session: Session) -> None:
    dead = new_job(dlq=True, dedup_key="k").id
    holder = enqueue(session, "email_send", tenant_id=row(session, dead)["tenant_id"], dedup_key="k").id
    with pytest.raises(DedupKeyTaken):
        replay(session, dead, actor="ada")
    other = new_job(dlq=True).id
    assert replay(session, other, actor="ada").ids == [other]
    session.commit()
    assert statuses(session) == {dead: JobStatus.DLQ, holder: JobStatus.PENDING, other: JobStatus.PENDING}


@pytest.mark.parametrize("limit", [0, 1, 3, 5, 10])
def test_the_limit_of_a_filter_counts_jobs_with_and_without_keys_together(session: Session, limit: int) -> None:
    jobs = [new_job(dlq=True, dedup_key=f"k{n}" if n % 2 else None).id for n in range(6)]
    changed = replay(session, JobFilter(limit=limit), actor="ada")
    assert sorted(changed.ids) == jobs[:limit]
