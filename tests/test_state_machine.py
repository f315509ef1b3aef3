"""Hypothesis drives several workers and an operator through the state machine, on a real server.

A model says what each step must do; the table of ``states.py`` says which steps there are at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from jobqueue import JobRepository, JobStatus, enqueue
from jobqueue.errors import DedupKeyTaken, JobNotFound, TransitionRefused
from jobqueue.repository import Changed, Outcome, Token
from jobqueue.repository.tokens import ENDS
from jobqueue.states import ACTIVE, DISCARDABLE, TRANSITIONS, Transition, sources
from jobqueue.states import JobStatus as S

T = TypeVar("T")

KINDS = st.sampled_from(["reindex", "bulk_import"])
# Two: the same worker must often claim the same job again
WORKERS = st.sampled_from(["host/1/a", "host/1/b"])
KEYS = st.none() | st.sampled_from(["x", "y"])
DELAYS = st.sampled_from([timedelta(0), timedelta(hours=1)])
BUDGETS = st.integers(1, 3)
SUBSETS = st.lists(st.integers(0, 1000), min_size=1, max_size=4)


@dataclass(eq=False)
class Model:
    """A job as it must be."""

    id: UUID
    kind: str
    max_attempts: int
    idempotency_key: str | None
    dedup_key: str | None
    status: JobStatus = S.PENDING
    attempts: int = 0
    due: bool = True
    token: Token | None = None
    """The attempt that holds the claim."""

    @property
    def has_attempts_left(self) -> bool:
        return self.attempts < self.max_attempts

    def holds_dedup(self, kind: str, key: str | None) -> bool:
        return key is not None and (self.kind, self.dedup_key) == (kind, key) and self.status in ACTIVE


class Queue(RuleBasedStateMachine):
    def __init__(self, engine: Engine, tenant_id: UUID) -> None:
        super().__init__()
        self.engine = engine
        self.tenant_id = tenant_id
        self.jobs: dict[UUID, Model] = {}
        self.tokens: list[Token] = []
        """Of all attempts ever, so that late ones try their luck."""
        self.known_ids: list[UUID] = []
        """Of all jobs ever, also discarded ones."""
        self.audit: Counter[tuple[str, UUID]] = Counter()
        self.errors: dict[UUID, str | None] = {}
        self.transact(lambda s: s.execute(text("DELETE FROM mdm.job")))
        self.transact(lambda s: s.execute(text("DELETE FROM mdm.audit_log")))

    def transact(self, step: Callable[[Session], T]) -> T:
        with Session(self.engine) as session, session.begin():
            return step(session)

    def apply(self, step: Callable[[JobRepository], T]) -> T:
        return self.transact(lambda session: step(JobRepository(session)))

    def pick(self, items: list[T], numbers: Iterable[int]) -> list[T]:
        return list(dict.fromkeys(items[number % len(items)] for number in numbers))

    def move(self, job: Model, verb: Transition, to: JobStatus) -> None:
        assert (job.status, to) in TRANSITIONS[verb], f"{verb}: {job.status} -> {to}"
        job.status = to
        if to is not S.RUNNING:
            job.token = None

    def holder_of(self, token: Token) -> Model | None:
        job = self.jobs.get(token.id)
        return job if job is not None and job.token == token else None

    # --- what applications and workers do --------------------------------------------------------------------

    @rule(kind=KINDS, budget=BUDGETS, delay=DELAYS, idempotency_key=KEYS, dedup_key=KEYS)
    def enqueue(
        self, kind: str, budget: int, delay: timedelta, idempotency_key: str | None, dedup_key: str | None
    ) -> None:
        taken = {
            job.id
            for job in self.jobs.values()
            if (idempotency_key is not None and (job.kind, job.idempotency_key) == (kind, idempotency_key))
            or job.holds_dedup(kind, dedup_key)
        }
        keys = {"idempotency_key": idempotency_key, "dedup_key": dedup_key}
        result = self.transact(
            lambda s: enqueue(s, kind, tenant_id=self.tenant_id, max_attempts=budget, delay=delay, **keys)  # type: ignore[arg-type]
        )
        assert result.created == (not taken)
        if taken:
            assert result.id in taken
        else:
            job = Model(result.id, kind, budget, idempotency_key, dedup_key, due=not delay)
            self.jobs[job.id] = job
            self.known_ids.append(job.id)

    @rule(worker=WORKERS, limit=st.integers(1, 4), kinds=st.none() | st.lists(KINDS, min_size=1, max_size=1))
    def claim(self, worker: str, limit: int, kinds: list[str] | None) -> None:
        due = [
            job for job in self.jobs.values() if job.status is S.PENDING and job.due and job.kind in (kinds or job.kind)
        ]
        claimed = self.apply(lambda r: r.claim(worker=worker, limit=limit, kinds=kinds))
        assert len(claimed) == min(limit, len(due))
        for found in claimed:
            job = self.jobs[found.id]
            assert job in due
            assert found.token not in self.tokens, "a token that was used before"
            self.move(job, Transition.CLAIM, S.RUNNING)
            job.attempts += 1
            job.token = found.token
            self.tokens.append(found.token)
            assert (found.attempt, found.exhausted) == (job.attempts, job.attempts > job.max_attempts)

    @precondition(lambda self: self.tokens)
    @rule(numbers=SUBSETS, verb=st.sampled_from(sorted(ENDS)), delay=DELAYS)
    def finish(self, numbers: list[int], verb: Transition, delay: timedelta) -> None:
        tokens = self.pick(self.tokens, numbers)
        held = [job for job in map(self.holder_of, tokens) if job is not None]
        audit = frozenset({S.DONE, S.DLQ})
        error = None if verb in (Transition.DONE, Transition.SNOOZE) else f"error of {verb}"
        outcomes = [Outcome(token, verb, error, delay, audit) for token in tokens]
        # A batch names a job once; two attempts of one job end in two batches
        ended = [end for outcome in outcomes for end in self.apply(lambda r, o=outcome: r.finish([o]))]  # type: ignore[misc]
        assert {end.id for end in ended} == {job.id for job in held}
        for job in held:
            to = {Transition.DONE: S.DONE, Transition.FAILED: S.FAILED, Transition.SNOOZE: S.PENDING}.get(verb, S.DLQ)
            step = verb
            if verb is Transition.RETRY:
                to = S.PENDING if job.has_attempts_left else S.DLQ
                step = verb if job.has_attempts_left else Transition.DLQ
            self.move(job, step, to)
            if to is S.PENDING:
                job.due = not delay
            if verb is Transition.SNOOZE:
                job.attempts = max(0, job.attempts - 1)
            if to in audit:
                self.audit[f"job_{to}", job.id] += 1
            self.errors[job.id] = error or self.errors.get(job.id)
        assert {end.id: end.status for end in ended} == {job.id: job.status for job in held}

    @precondition(lambda self: self.tokens)
    @rule(numbers=SUBSETS)
    def renew(self, numbers: list[int]) -> None:
        tokens = self.pick(self.tokens, numbers)
        for token in tokens:
            renewal = self.apply(lambda r, t=token: r.renew([t]))  # type: ignore[misc]
            held = self.holder_of(token) is not None
            assert (renewal.renewed, renewal.lost) == (({token.id}, set()) if held else (set(), {token.id}))

    @precondition(lambda self: self.tokens)
    @rule(numbers=SUBSETS)
    def release(self, numbers: list[int]) -> None:
        tokens = self.pick(self.tokens, numbers)
        held = [job for job in map(self.holder_of, tokens) if job is not None]
        assert set(self.apply(lambda r: r.release(tokens))) == {job.id for job in held}
        for job in held:
            self.move(job, Transition.RELEASE, S.PENDING)
            job.attempts = max(0, job.attempts - 1)

    @rule(audited=st.booleans())
    def recover(self, audited: bool) -> None:
        running = [job for job in self.jobs.values() if job.status is S.RUNNING]
        unaudited = () if audited else ("reindex", "bulk_import")
        recovered = self.apply(lambda r: r.recover_stale(timedelta(0), unaudited=unaudited))
        for job in running:
            to = S.PENDING if job.has_attempts_left else S.DLQ
            self.move(job, Transition.RECOVER, to)
            self.audit["job_dlq", job.id] += audited and to is S.DLQ
            self.errors[job.id] = "worker lost"
        assert {job.id: job.status for job in recovered} == {job.id: job.status for job in running}

    # --- what operators do -----------------------------------------------------------------------------------

    def operate(
        self,
        numbers: list[int],
        action: str,
        allowed: frozenset[JobStatus],
        step: Callable[[JobRepository, list[UUID]], Changed],
        blocked: Callable[[Model], bool] = lambda job: False,
    ) -> list[Model]:
        """Apply a verb to some jobs; those it must have changed."""
        ids = self.pick(self.known_ids, numbers)
        changed = self.apply(lambda r: step(r, ids))
        done = [self.jobs[job_id] for job_id in changed.ids]
        for job_id, error in changed.refused.items():
            if job_id not in self.jobs:
                assert isinstance(error, JobNotFound)
            elif isinstance(error, DedupKeyTaken):
                assert blocked(self.jobs[job_id])
            else:
                assert isinstance(error, TransitionRefused)
                assert self.jobs[job_id].status not in allowed
        assert {*changed.ids, *changed.refused} == set(ids)
        assert all(job.status in allowed for job in done)
        self.audit.update((action, job.id) for job in done)
        return done

    @precondition(lambda self: self.known_ids)
    @rule(numbers=SUBSETS)
    def cancel(self, numbers: list[int]) -> None:
        for job in self.operate(
            numbers, "cancel", sources(Transition.CANCEL), lambda r, ids: r.cancel(ids, actor="ada", reason="why not")
        ):
            self.move(job, Transition.CANCEL, S.FAILED)
            self.errors[job.id] = "cancelled by ada: why not"

    @precondition(lambda self: self.known_ids)
    @rule(numbers=SUBSETS)
    def replay(self, numbers: list[int]) -> None:
        def blocked(job: Model) -> bool:
            """By a job that was active before, or by one that came back in the same replay."""
            return any(other is not job and other.dedup_key == job.dedup_key for other in self.jobs.values())

        allowed = sources(Transition.REPLAY)
        for job in self.operate(numbers, "replay", allowed, lambda r, ids: r.replay(ids, actor="ada"), blocked):
            assert not any(other.holds_dedup(job.kind, job.dedup_key) for other in self.jobs.values())
            self.move(job, Transition.REPLAY, S.PENDING)
            job.attempts, job.due = 0, True

    @precondition(lambda self: self.known_ids)
    @rule(numbers=SUBSETS)
    def discard(self, numbers: list[int]) -> None:
        for job in self.operate(numbers, "discard", DISCARDABLE, lambda r, ids: r.discard(ids, actor="ada")):
            del self.jobs[job.id]

    @precondition(lambda self: self.jobs)
    @rule(number=st.integers(0, 1000), budget=BUDGETS)
    def edit_max_attempts(self, number: int, budget: int) -> None:
        (job,) = self.pick(list(self.jobs.values()), [number])
        statement = text("UPDATE mdm.job SET max_attempts = :budget WHERE id = :id")
        self.transact(lambda s: s.execute(statement, {"budget": budget, "id": job.id}))
        job.max_attempts = budget

    # --- what must hold after each step ----------------------------------------------------------------------

    @invariant()
    def the_table_is_as_the_model_says(self) -> None:
        rows = self.transact(lambda s: s.execute(text("SELECT *, available_at <= now() AS due FROM mdm.job")).all())
        assert {row.id for row in rows} == set(self.jobs)
        for row in rows:
            self.check(row, self.jobs[row.id])

    def check(self, row: Any, job: Model) -> None:
        assert (row.status, row.attempts, row.max_attempts) == (job.status.value, job.attempts, job.max_attempts)
        assert row.attempts >= 0
        assert (row.completed_at is not None) == (job.status not in ACTIVE)
        if job.status is S.PENDING:
            assert (row.claimed_by, row.claimed_at, row.due) == (None, None, job.due)
        if job.token is not None:
            assert (row.claimed_by, row.started_at) == (job.token.worker, job.token.started_at)
        expected = self.errors.get(job.id)
        assert (row.last_error is None) if expected is None else str(row.last_error).startswith(expected)

    @invariant()
    def keys_are_unique(self) -> None:
        idempotent = [(job.kind, job.idempotency_key) for job in self.jobs.values() if job.idempotency_key]
        active = [(job.kind, job.dedup_key) for job in self.jobs.values() if job.dedup_key and job.status in ACTIVE]
        assert len(idempotent) == len(set(idempotent))
        assert len(active) == len(set(active))

    @invariant()
    def the_audit_log_has_each_deed_once(self) -> None:
        rows = self.transact(lambda s: s.execute(text("SELECT action, job_id FROM mdm.audit_log")).all())
        assert Counter((row.action, row.job_id) for row in rows) == +self.audit


def test_no_step_leaves_the_state_machine(engine: Engine, tenant_id: UUID) -> None:
    run_state_machine_as_test(
        partial(Queue, engine, tenant_id),  # type: ignore[arg-type]  # takes any callable
        settings=settings(
            max_examples=100,
            stateful_step_count=30,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
