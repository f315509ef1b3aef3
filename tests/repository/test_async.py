"""The repository through ``run_sync``: the same statements on psycopg's asynchronous side and on asyncpg."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from jobqueue import SYSTEM_TENANT_ID, JobFilter, JobRepository, NewJob, aenqueue, aenqueue_many
from jobqueue.repository import Outcome
from jobqueue.states import JobStatus, Transition
from tests.repository.steps import MINUTE, WORKER, audit, go_stale, statuses

T = TypeVar("T")


async def test_a_job_goes_through_every_transition(session: Session, any_async_engine: AsyncEngine) -> None:
    async with AsyncSession(any_async_engine) as async_session, async_session.begin():

        async def run(step: Callable[[JobRepository], T]) -> T:
            return await async_session.run_sync(lambda sync: step(JobRepository(sync)))

        kinds, tenants = ["email_send", "reindex"], [SYSTEM_TENANT_ID]
        for n in range(6):
            await aenqueue(async_session, "email_send", {"n": n}, tenant_id=SYSTEM_TENANT_ID, dedup_key=f"{n}")
        claimed = await run(lambda repository: repository.claim(worker=WORKER, limit=6, kinds=kinds, tenants=tenants))
        tokens = [job.token for job in claimed]
        assert (await run(lambda repository: repository.renew(tokens))).renewed == {token.id for token in tokens}
        verbs = [Transition.DONE, Transition.RETRY, Transition.SNOOZE, Transition.FAILED, Transition.DLQ]
        outcomes = [
            Outcome(token, verb, f"{verb}", MINUTE, frozenset(JobStatus))
            for token, verb in zip(tokens, verbs, strict=False)
        ]
        assert len(await run(lambda repository: repository.finish(outcomes))) == 5
        assert await run(lambda repository: repository.finish(outcomes)) == []
        assert await run(lambda repository: repository.release(tokens)) == [tokens[5].id]

        (again,) = await run(lambda repository: repository.claim(worker=WORKER, limit=6))
        await async_session.run_sync(go_stale, again.id)
        (recovered,) = await run(lambda repository: repository.recover_stale(MINUTE))
        assert recovered.id == again.id
        dead = JobFilter(statuses=[JobStatus.DLQ], kinds=["email_send"], tenants=tenants, error="DLQ", limit=5)
        assert (await run(lambda repository: repository.replay(dead, actor="ada"))).ids == [tokens[4].id]
        old = JobFilter(older_than=timedelta(0), statuses=[JobStatus.FAILED])
        assert (await run(lambda repository: repository.discard(old, actor="ada"))).ids == [tokens[3].id]
        everything = JobFilter()
        assert len((await run(lambda repository: repository.cancel(everything, actor="ada"))).ids) == 4
    assert sorted(statuses(session).values()) == ["done", "failed", "failed", "failed", "failed"]
    assert [action for action, _, _ in audit(session)][:4] == ["job_done", "job_pending", "job_pending", "job_failed"]


async def test_jobs_are_enqueued_with_every_option(session: Session, any_async_engine: AsyncEngine) -> None:
    options = [{"delay": MINUTE}, {"available_at": datetime(2900, 1, 1, tzinfo=UTC)}, {"idempotency_key": "k"}, {}]
    jobs = [
        NewJob(kind="email_send", tenant_id=SYSTEM_TENANT_ID, payload={"a": [None, {"b": "ä"}]}, priority=n, **option)  # type: ignore[arg-type]
        for n, option in enumerate(options)
    ]
    async with AsyncSession(any_async_engine) as async_session, async_session.begin():
        results = await aenqueue_many(async_session, jobs)
        repeated = await aenqueue_many(async_session, jobs[2:3])
    assert all(result.created for result in results)
    assert (repeated[0].id, repeated[0].created) == (results[2].id, False)
    claimed = JobRepository(session).claim(worker=WORKER, limit=5)
    assert [(job.priority, job.payload) for job in claimed] == [(n, {"a": [None, {"b": "ä"}]}) for n in (2, 3)]
