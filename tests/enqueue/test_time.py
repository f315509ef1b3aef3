"""Times are the database's: the clocks of the hosts that enqueue or work do not matter."""

from __future__ import annotations

import datetime as datetime_module
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from jobqueue import SYSTEM_TENANT_ID, Job, JobRepository, enqueue, replay
from jobqueue.repository import Outcome
from jobqueue.states import Transition


def clock(session: Session) -> datetime:
    now: datetime = session.scalars(text("SELECT clock_timestamp()")).one()
    return now


def test_a_delay_counts_from_the_call_not_from_the_start_of_the_transaction(engine: Engine) -> None:
    delay = timedelta(seconds=5)
    with Session(engine) as session, session.begin():
        began = session.scalars(text("SELECT now() FROM pg_sleep(0.1)")).one()
        before = clock(session)
        assert before - began >= timedelta(seconds=0.1)
        job_id = enqueue(session, "email_send", tenant_id=SYSTEM_TENANT_ID, delay=delay).id
        after = clock(session)
        assert before + delay <= session.get_one(Job, job_id).available_at <= after + delay


def test_a_job_without_a_delay_is_due_at_its_commit(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        job_id = enqueue(session, "email_send", tenant_id=SYSTEM_TENANT_ID).id
        session.add(Job(tenant_id=SYSTEM_TENANT_ID, job_kind="email_send"))
    with Session(engine) as session:
        assert len(JobRepository(session).claim(worker="w", limit=5)) == 2
        job = session.get_one(Job, job_id)
        assert job.available_at == job.created_at


def test_available_at_is_an_instant_in_whatever_zone_it_is_given(engine: Engine) -> None:
    when = datetime(2100, 7, 1, 12, tzinfo=datetime_module.timezone(timedelta(hours=5, minutes=30)))
    with Session(engine) as session, session.begin():
        job_id = enqueue(session, "email_send", tenant_id=SYSTEM_TENANT_ID, available_at=when).id
    with Session(engine) as session:
        assert session.get_one(Job, job_id).available_at == datetime(2100, 7, 1, 6, 30, tzinfo=UTC)


class _AnyDatetime(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, datetime)


def set_host_clock(monkeypatch: pytest.MonkeyPatch, shift: timedelta) -> None:
    """Have everything of jobqueue read a clock that is off by ``shift``."""

    class Shifted(datetime, metaclass=_AnyDatetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + shift

        @classmethod
        def utcnow(cls) -> Any:
            return datetime.now(UTC).replace(tzinfo=None) + shift

    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + shift.total_seconds())
    for name, module in list(sys.modules.items()):
        if name.startswith("jobqueue.") and getattr(module, "datetime", None) is datetime:
            monkeypatch.setattr(module, "datetime", Shifted)


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_host_whose_clock_is_hours_off_writes_no_time_of_its_own(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    set_host_clock(monkeypatch, timedelta(hours=hours))
    minute = timedelta(minutes=1)

    def seen(value: datetime | None) -> bool:
        return value is not None and before <= value <= clock(session)

    with Session(engine) as session:
        repository, before = JobRepository(session), clock(session)

        def row() -> Job:
            return session.get_one(Job, job_id, populate_existing=True)

        job_id = enqueue(session, "email_send", tenant_id=SYSTEM_TENANT_ID, delay=minute).id
        assert seen(row().available_at - minute)
        assert repository.claim(worker="w") == []
        session.execute(text("UPDATE mdm.job SET available_at = now()"))
        session.commit()

        (claimed,) = repository.claim(worker="w")
        assert seen(row().claimed_at)
        assert seen(claimed.token.started_at)
        before = clock(session)
        repository.renew([claimed.token])
        assert seen(row().claimed_at)
        assert repository.recover_stale(minute) == []
        repository.finish([Outcome(claimed.token, Transition.RETRY, "failed", minute)])
        assert seen(row().available_at - minute)

        session.execute(text("UPDATE mdm.job SET available_at = now()"))
        (claimed,) = repository.claim(worker="w")
        repository.finish([Outcome(claimed.token, Transition.DLQ, "dead")])
        assert seen(row().completed_at)
        before = clock(session)
        replay(session, job_id, actor="ada")
        assert seen(row().available_at)
        session.commit()
        (claimed,) = repository.claim(worker="w")
        repository.finish([Outcome(claimed.token, Transition.DONE)])
        assert seen(row().completed_at)
