"""Keys across sessions: whoever commits first has the key, and the others learn it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeAlias

import pytest
from sqlalchemy import Engine, NullPool, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from jobqueue import SYSTEM_TENANT_ID, Enqueued, NewJob, enqueue, enqueue_many
from tests.enqueue.ways import jobs
from tests.support.locks import in_threads, running, wait_for_blocked

ROUNDS = 100

each_key = pytest.mark.parametrize("key", ["idempotency_key", "dedup_key"])


def new(kind: str = "email_send", **keys: str) -> NewJob:
    return NewJob(kind=kind, tenant_id=SYSTEM_TENANT_ID, **keys)  # type: ignore[arg-type]


@each_key
def test_of_twenty_sessions_one_creates_the_job_and_all_get_its_id(database_url: str, engine: Engine, key: str) -> None:
    start = threading.Barrier(20)
    crowd = create_engine(database_url, poolclass=NullPool)

    def race() -> Enqueued:
        with Session(crowd) as session, session.begin():
            session.connection()
            start.wait()
            return enqueue_many(session, [new(**{key: "k"})])[0]

    results = in_threads([race] * 20)
    assert [result.created for result in results].count(True) == 1
    assert {result.id for result in results} == {job.id for job in jobs(engine)}


@each_key
@pytest.mark.parametrize("first_commits", [True, False])
def test_the_second_waits_until_it_is_known_what_becomes_of_the_first(
    engine: Engine, key: str, first_commits: bool
) -> None:
    def second() -> Enqueued:
        with Session(engine) as session, session.begin():
            result = enqueue_many(session, [new(**{key: "k"})])[0]
            enqueue(session, "reindex", tenant_id=SYSTEM_TENANT_ID)
            return result

    with Session(engine) as session:
        first = enqueue_many(session, [new(**{key: "k"})])[0]
        with running(second) as waiting:
            wait_for_blocked(engine)
            assert not waiting.done()
            if first_commits:
                session.commit()
                assert waiting.result(timeout=30) == Enqueued(first.id, created=False)
            else:
                session.rollback()
                result = waiting.result(timeout=30)
                assert result.created
                assert result.id != first.id
    assert len(jobs(engine)) == 2


def _keyed(sort: str) -> Callable[[str], list[NewJob]]:
    return lambda turn: [new(**{sort: f"{turn}.{n}"}) for n in range(8)]


def _two_kinds(turn: str) -> list[NewJob]:
    return [new(kind, idempotency_key=f"{turn}.{n}") for n in range(5) for kind in ("email_send", "reindex")]


def _one_or_the_other(turn: str) -> list[NewJob]:
    return [new(**{sort: f"{turn}.{n}"}) for n in range(4) for sort in ("dedup_key", "idempotency_key")]


def _both(turn: str) -> list[NewJob]:
    return [new(idempotency_key=f"{turn}.{n}", dedup_key=f"{turn}.{7 - n}") for n in range(8)]


def _same_dedup_keys_only(turn: str) -> list[NewJob]:
    return [new(dedup_key=f"{turn}.{n}") for n in range(8)]


def _same_dedup_keys_in_another_order(turn: str) -> list[NewJob]:
    return [new(idempotency_key=f"{turn}.other.{n}", dedup_key=f"{turn}.{n}") for n in range(8)]


Bulk: TypeAlias = Callable[[str], list[NewJob]]

MEETINGS: dict[str, tuple[Bulk, Bulk]] = {
    "idempotency keys": (_keyed("idempotency_key"), _keyed("idempotency_key")),
    "dedup keys": (_keyed("dedup_key"), _keyed("dedup_key")),
    "one or the other": (_one_or_the_other, _one_or_the_other),
    "two kinds": (_two_kinds, _two_kinds),
    "both": (_both, _both),
    "both, crossing": (_both, _same_dedup_keys_in_another_order),
    "both, against dedup keys": (_both, _same_dedup_keys_only),
}


@pytest.mark.parametrize("chunk", [5000, 3])
@pytest.mark.parametrize("bulks", MEETINGS.values(), ids=MEETINGS.keys())
def test_bulk_calls_with_the_same_keys_in_opposite_order_do_not_deadlock(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, bulks: tuple[Bulk, Bulk], chunk: int
) -> None:
    monkeypatch.setattr(import_module("jobqueue.enqueue"), "_CHUNK", chunk)
    start = threading.Barrier(2)

    def rounds(jobs: Bulk, step: int) -> None:
        try:
            with Session(engine) as session:
                for turn in range(ROUNDS):
                    start.wait(timeout=30)
                    enqueue_many(session, jobs(f"{turn}")[::step])
                    session.rollback()
        except BaseException:
            start.abort()
            raise

    in_threads([lambda: rounds(bulks[0], 1), lambda: rounds(bulks[1], -1)])


def test_single_calls_in_opposite_order_fail_in_a_way_that_can_be_tried_again(engine: Engine) -> None:
    both_have_one = threading.Barrier(2)

    def take(first: str, second: str) -> Any:
        with Session(engine) as session:
            session.execute(text("SET LOCAL deadlock_timeout = '20ms'"))
            enqueue(session, "email_send", tenant_id=SYSTEM_TENANT_ID, idempotency_key=first)
            both_have_one.wait(timeout=30)
            try:
                enqueue(session, "email_send", tenant_id=SYSTEM_TENANT_ID, idempotency_key=second)
            except OperationalError as error:
                return getattr(error.orig, "sqlstate", None)
            session.commit()
            return "committed"

    results = in_threads([lambda: take("a", "b"), lambda: take("b", "a")])
    assert sorted(results) == ["40P01", "committed"]
