"""What cannot be stored as it is is refused before anything is sent, and the caller's transaction goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel
from sqlalchemy import Engine, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from jobqueue import SYSTEM_TENANT_ID, Handlers, Job, NewJob, Snooze, enqueue, enqueue_many
from jobqueue.errors import InvalidJob, PayloadError, UnknownKind
from jobqueue.payload import PayloadType
from tests.enqueue.host import Order
from tests.enqueue.ways import payloads


class Measured(BaseModel):
    value: float


def nested(value: object, depth: int) -> dict[str, Any]:
    return {"inner": nested(value, depth - 1) if depth > 1 else value}


NULS = {
    "value": ({"name": "a\x00b"}, "$.name"),
    "key": ({"na\x00me": 1}, "$['na\\x00me']"),
    "deep": (nested("a\x00b", 5), "$.inner.inner.inner.inner.inner"),
    "list": ({"names": ["a", {"b": "\x00"}]}, "$.names[1].b"),
}


@pytest.mark.parametrize(("payload", "path"), NULS.values(), ids=NULS.keys())
@pytest.mark.usefixtures("host_tables")
def test_nul_in_a_payload_is_refused_and_the_transaction_goes_on(
    engine: Engine, statements: list[str], payload: dict[str, Any], path: str
) -> None:
    with Session(engine) as session, session.begin():
        session.add(Order(name="before"))
        session.flush()
        sent = len(statements)
        with pytest.raises(ValueError, match="NUL") as refusal:
            enqueue(session, "email_send", payload, tenant_id=SYSTEM_TENANT_ID)
        assert isinstance(refusal.value, PayloadError)
        assert [fault[0] for fault in refusal.value.faults] == [path]
        assert len(statements) == sent
        session.add(Order(name="after"))
    with Session(engine) as session:
        assert set(session.scalars(select(Order.name))) == {"before", "after"}
    assert payloads(engine) == []


def test_a_backslash_before_u0000_is_text_like_any_other(engine: Engine) -> None:
    payload = {"text": "a\\u0000b", "a\\u0000b": 1}
    with Session(engine) as session, session.begin():
        enqueue(session, "email_send", payload, tenant_id=SYSTEM_TENANT_ID)
    assert payloads(engine) == [payload]


def test_a_payload_comes_back_as_it_went_in(engine: Engine) -> None:
    payload: dict[str, Any] = {
        "": "empty key",
        "text": "ä€😀\u2028\x01\x7f\ufffe '\"\\ $1 %s :name {}",
        "numbers": [0, -1, 2**63, 10**400, 0.1, -1.5e-300, 1.0, 5e-324],
        "none": None,
        "flags": [True, False],
        "lists": [[], [[]], [{}], ["1", 1, 1.5]],
        "b": {"z": 1, "a": {"10": 1, "9": 2}},
    }
    with Session(engine) as session, session.begin():
        enqueue(session, "email_send", payload, tenant_id=SYSTEM_TENANT_ID)
        session.add(Job(tenant_id=SYSTEM_TENANT_ID, job_kind="email_send", payload=payload))
    for stored in payloads(engine):
        assert stored == payload
        assert [type(number) for number in stored["numbers"]] == [type(number) for number in payload["numbers"]]


def test_a_large_float_comes_back_as_its_digits_and_as_a_float_where_the_type_says_so(engine: Engine) -> None:
    measured = PayloadType.of(Measured)
    with Session(engine) as session, session.begin():
        enqueue(session, "email_send", measured.dump(Measured(value=6.02e23)), tenant_id=SYSTEM_TENANT_ID)
    (stored,) = payloads(engine)
    assert stored == {"value": 602 * 10**21}
    assert measured.parse(json.dumps(stored)) == Measured(value=6.02e23)


@pytest.mark.parametrize("payload", ["[1]", '"text"', "1", "null", None])
def test_the_table_itself_refuses_a_payload_that_is_no_object(engine: Engine, payload: str | None) -> None:
    with engine.connect() as connection, pytest.raises(IntegrityError):
        connection.exec_driver_sql(
            "INSERT INTO mdm.job (tenant_id, job_kind, payload) VALUES (%s, 'email_send', %s::jsonb)",
            (SYSTEM_TENANT_ID, payload),
        )


FAR_WEST = timezone(timedelta(hours=-12))

REFUSED: dict[str, list[object]] = {
    "tenant_id": [None, 1, "nobody", "\x00", b"0" * 16, "0" * 33],
    "payload": ["text", [1], (), 1, b"{}", {1: "a"}],
    "available_at": [
        datetime.now(),
        datetime.max.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=FAR_WEST),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=12))),
        datetime(3000, 1, 1, tzinfo=UTC),
        datetime(1969, 1, 1, tzinfo=UTC),
        datetime.now(UTC).date(),
        5,
        "2030-01-01T00:00:00Z",
    ],
    "delay": [-5, 5, 1.5, float("inf"), 10**12, "5", timedelta(days=-1), timedelta(days=40_000), timedelta.max],
    "priority": [-32_769, 32_768, 40_000, 10**30, 1.5, 1.0, True, "3", None],
    "max_attempts": [0, -1, 2_147_483_648, 10**12, 8.0, True, "8", None],
    "idempotency_key": ["", "a\x00b", "\ud800", "k" * 1025, "ä" * 513, 1, b"k"],
    "dedup_key": ["", "a\x00b", "\ud800", "k" * 1025, 1],
    "created_by": ["", "a\x00b", "\ud800", "k" * 1025, 1],
    "kind": ["", "a\x00b", "Email", "email-send", "email_send ", "1mail", "ä", "k" * 64, None, 1],
}
EACH_REFUSED = [(name, value) for name, values in REFUSED.items() for value in values]


def _named(value: object) -> str:
    return ascii(value)[:25]


@pytest.mark.parametrize(("name", "value"), EACH_REFUSED, ids=_named)
def test_a_value_that_cannot_be_stored_is_refused(name: str, value: object) -> None:
    given: dict[str, Any] = {"kind": "email_send", "tenant_id": SYSTEM_TENANT_ID} | {name: value}
    with pytest.raises(InvalidJob):
        NewJob(**given)


@pytest.mark.parametrize(("name", "value"), [each for each in EACH_REFUSED if each[0] != "delay"], ids=_named)
def test_a_job_object_refuses_it_on_assignment(name: str, value: object) -> None:
    job = Job()
    if value is None and name == "available_at":
        return
    with pytest.raises(InvalidJob):
        setattr(job, {"kind": "job_kind"}.get(name, name), value)


def test_the_refusal_of_a_naive_time_names_the_remedy() -> None:
    with pytest.raises(InvalidJob, match=r"no time zone.*pass datetime\.now\(tz="):
        NewJob(kind="email_send", tenant_id=SYSTEM_TENANT_ID, available_at=datetime(2030, 1, 1))


def test_delay_and_available_at_exclude_each_other() -> None:
    with pytest.raises(InvalidJob, match="exclude each other"):
        NewJob(
            kind="email_send",
            tenant_id=SYSTEM_TENANT_ID,
            delay=timedelta(0),
            available_at=datetime(2030, 1, 1, tzinfo=UTC),
        )


@pytest.mark.parametrize("delay", [timedelta(seconds=-1), 5, timedelta.max])
def test_a_snooze_takes_what_a_delay_takes(delay: timedelta) -> None:
    with pytest.raises(InvalidJob):
        Snooze(delay)


OFTEN: list[Callable[[Session], object]] = [
    lambda session: enqueue(session, "email_send", tenant_id=SYSTEM_TENANT_ID, priority=40_000),
    lambda session: enqueue(session, "email_send", tenant_id=SYSTEM_TENANT_ID, priority=1.5),  # type: ignore[arg-type]
    lambda session: enqueue(session, "email_send", tenant_id=SYSTEM_TENANT_ID, delay=-5),  # type: ignore[arg-type]
    lambda session: enqueue(session, "email_send", tenant_id=SYSTEM_TENANT_ID, idempotency_key="\x00"),
    lambda session: enqueue(session, "no_such_kind", tenant_id=SYSTEM_TENANT_ID),
    lambda session: enqueue(session, "email_send", [1], tenant_id=SYSTEM_TENANT_ID),  # type: ignore[arg-type]
]


def test_the_transaction_goes_on_after_a_refusal(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        enqueue(session, "email_send", {"n": 1}, tenant_id=SYSTEM_TENANT_ID)
        for refused in OFTEN:
            with pytest.raises(InvalidJob):
                refused(session)
        enqueue(session, "email_send", {"n": 2}, tenant_id=SYSTEM_TENANT_ID)
    assert sorted(payload["n"] for payload in payloads(engine)) == [1, 2]


def test_an_unknown_kind_is_refused_with_the_revision_to_write(engine: Engine) -> None:
    jobs = [NewJob(kind=kind, tenant_id=SYSTEM_TENANT_ID) for kind in ("email_send", "ocr_extract", "ab_c")]
    with Session(engine) as session:
        with pytest.raises(UnknownKind, match=r'op\.add_job_kind\("ocr_extract"\)') as refusal:
            enqueue_many(session, jobs)
        assert refusal.value.kinds == ["ab_c", "ocr_extract"]
        session.commit()
    assert payloads(engine) == []


def test_the_limits_are_stored_as_they_are(engine: Engine) -> None:
    jobs = [
        NewJob(
            kind="email_send",
            tenant_id=SYSTEM_TENANT_ID,
            priority=priority,
            max_attempts=2_147_483_647,
            idempotency_key=f"{priority}".ljust(1024, "k"),
            available_at=datetime(2999, 12, 31, tzinfo=FAR_WEST) - timedelta(days=1),
        )
        for priority in (-32_768, 32_767)
    ]
    with Session(engine) as session, session.begin():
        enqueue_many(session, jobs)
    with Session(engine) as session:
        stored = session.scalars(select(Job).order_by(Job.priority)).all()
        assert [(job.priority, job.max_attempts, job.available_at, job.idempotency_key) for job in stored] == [
            (job.priority, job.max_attempts, job.available_at, job.idempotency_key) for job in jobs
        ]


def test_a_tenant_may_be_given_as_text() -> None:
    job = NewJob(kind="email_send", tenant_id=str(SYSTEM_TENANT_ID))  # type: ignore[arg-type]
    assert job.tenant_id == UUID(int=0)


def test_the_payload_is_copied_when_the_job_is_made() -> None:
    payload: dict[str, Any] = {"to": ["ada"]}
    job = NewJob(kind="email_send", payload=payload, tenant_id=SYSTEM_TENANT_ID)
    payload["to"].append("\x00")
    assert job.payload == {"to": ["ada"]}


def test_a_handler_refuses_what_does_not_fit_its_type(engine: Engine, statements: list[str]) -> None:
    handlers = Handlers()

    @handlers.register("email_send")
    def send(payload: dict[str, Any]) -> None: ...

    with Session(engine) as session, pytest.raises(PayloadError):
        send.enqueue(session, {"when": datetime.now(UTC)}, tenant_id=SYSTEM_TENANT_ID)
    assert statements == []
