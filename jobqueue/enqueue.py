"""Writing jobs in the caller's transaction: no commit, no job.

``session.add(Job(...))`` does as well; the functions here add keys that may exist already, delays by the
database's clock, and many jobs at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID
from zlib import crc32

from sqlalchemy import (
    ARRAY,
    DateTime,
    Integer,
    Interval,
    SmallInteger,
    Text,
    Uuid,
    bindparam,
    cast,
    func,
    literal,
    select,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.types import TypeEngine
from uuid_utils.compat import uuid7

from jobqueue.errors import EnqueueConflict, InvalidJob, UnknownTenant
from jobqueue.models import Job, JobKindType
from jobqueue.models.checks import check_column, check_delay
from jobqueue.models.job import BOUND, JOB
from jobqueue.models.known_kinds import require_kinds
from jobqueue.sessions import AnyAsyncSession, AnySession, plain, plain_async
from jobqueue.states import ACTIVE

_ROUNDS: Final = 10
_CHUNK: Final = 5000
_BUCKETS: Final = 64


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What came of an enqueue. ``created`` is False when the key was there already; ``id`` is then that job's."""

    id: UUID
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job to be enqueued. Checked when it is made.

    ``idempotency_key`` names a job for as long as its row exists; ``dedup_key`` only while it is pending or
    running; both within tenant and kind. ``delay`` counts from the enqueue, by the database's clock.

    :raises InvalidJob: (also ``PayloadError``) naming the argument, what is wrong, and what it takes.
    """

    kind: str
    payload: dict[str, Any] = field(default_factory=dict)
    tenant_id: UUID
    delay: timedelta | None = None
    available_at: datetime | None = None
    priority: int = 100
    max_attempts: int = 8
    created_by: str | None = None
    idempotency_key: str | None = None
    dedup_key: str | None = None

    def __post_init__(self) -> None:
        checked = {
            "kind": check_column("job_kind", self.kind),
            "delay": None if self.delay is None else check_delay(self.delay),
        }
        for column in _CHECKED:
            checked[column] = check_column(column, getattr(self, column))
        if self.delay is not None and self.available_at is not None:
            raise InvalidJob("delay and available_at exclude each other; pass one of them")
        for name, value in checked.items():
            object.__setattr__(self, name, value)


_CHECKED: Final = (
    "tenant_id",
    "payload",
    "available_at",
    "priority",
    "max_attempts",
    "created_by",
    "idempotency_key",
    "dedup_key",
)


def enqueue(
    session: AnySession,
    kind: str,
    payload: Mapping[str, Any] | None = None,
    *,
    tenant_id: UUID,
    delay: timedelta | None = None,
    available_at: datetime | None = None,
    priority: int = 100,
    max_attempts: int = 8,
    created_by: str | None = None,
    idempotency_key: str | None = None,
    dedup_key: str | None = None,
) -> Enqueued:
    """Write one job in the session's transaction; it exists when that commits. See ``NewJob`` for the arguments.

    A key that is taken is no error: the result names the job that has it. An uncommitted twin is waited for. So two
    transactions that take the same keys in opposite order, one call each, deadlock: PostgreSQL ends one of them with
    40P01, to be tried again (``enqueue_many`` takes many keys in one order). Above READ COMMITTED, a key that was
    taken since the transaction's snapshot is a serialization failure, 40001, to be tried again likewise.

    :raises InvalidJob: (also ``PayloadError``, ``UnknownKind``) before anything was sent; the transaction goes on.
    :raises UnknownTenant: the tenant has no row; the transaction must be rolled back.
    """
    job = NewJob(
        kind=kind,
        payload={} if payload is None else payload,  # type: ignore[arg-type]  # NewJob refuses what is no dict
        tenant_id=tenant_id,
        delay=delay,
        available_at=available_at,
        priority=priority,
        max_attempts=max_attempts,
        created_by=created_by,
        idempotency_key=idempotency_key,
        dedup_key=dedup_key,
    )
    return enqueue_many(session, [job])[0]


async def aenqueue(
    session: AnyAsyncSession, kind: str, payload: Mapping[str, Any] | None = None, **options: Any
) -> Enqueued:
    """:func:`enqueue` for an async session, with the same arguments."""
    return await plain_async(session).run_sync(lambda sync: enqueue(sync, kind, payload, **options))


def enqueue_many(session: AnySession, jobs: Iterable[NewJob]) -> list[Enqueued]:
    """Write many jobs in the session's transaction; the results are in the order of ``jobs``.

    Keys are taken in one order by everybody, so that two calls cannot deadlock over them, each being the first with
    keys in its transaction. Jobs with both keys make the calls with keys of the same tenant and kind wait for each
    other's commits. Two jobs of one call with the same key are one job.

    :raises UnknownKind: before anything was written; the transaction goes on.
    :raises UnknownTenant: a tenant has no row; the transaction must be rolled back.
    """
    session = plain(session)
    rows = [_Row(index, uuid7(), job) for index, job in enumerate(jobs)]
    if not rows:
        return []
    require_kinds(session, {row.job.kind for row in rows})
    _autoflush(session)
    if len(rows) > 1:
        _serialize_crossing_keys(session, rows)
    ordered = sorted(rows, key=_key_order)
    for _ in range(_ROUNDS):
        with _undone_unless_complete(session, rows) as results:
            _insert(session, ordered, results)
            _find(session, [row for row in ordered if row.index not in results], results)
        if len(results) == len(rows):
            return [results[row.index] for row in rows]
    raise EnqueueConflict(
        f"a key was taken and given back by other transactions {_ROUNDS} times in a row; "
        "roll back and try the transaction again"
    )


async def aenqueue_many(session: AnyAsyncSession, jobs: Iterable[NewJob]) -> list[Enqueued]:
    """:func:`enqueue_many` for an async session."""
    return await plain_async(session).run_sync(enqueue_many, jobs)


@dataclass(frozen=True, slots=True)
class _Row:
    index: int
    id: UUID
    job: NewJob


def _key_order(row: _Row) -> tuple[bool, UUID, str, str, str]:
    job = row.job
    return (
        job.idempotency_key is None,
        job.tenant_id,
        job.kind,
        job.idempotency_key or "",
        job.dedup_key or "",
    )


@contextmanager
def _undone_unless_complete(session: Session, rows: Sequence[_Row]) -> Iterator[dict[int, Enqueued]]:
    """Collects the result of each row, by its index.

    A row has none if whoever held its key gave it back between the insert and the look. All is then tried again:
    from the start, by a savepoint, since a key that is taken out of order can deadlock.
    """
    savepoint = None
    if len(rows) > 1 and any(_has_key(row) for row in rows):
        connection = session.connection(bind_arguments=BOUND)
        # With AUTOCOMMIT each statement is its own transaction: there is nothing to undo, and nothing stays locked
        if not getattr(connection.connection.dbapi_connection, "autocommit", False):
            savepoint = connection.begin_nested()
    results: dict[int, Enqueued] = {}
    yield results
    if savepoint is None:
        return
    if len(results) == len(rows):
        savepoint.commit()
    else:
        savepoint.rollback()


def _has_key(row: _Row) -> bool:
    return row.job.idempotency_key is not None or row.job.dedup_key is not None


def _insert(session: Session, rows: Sequence[_Row], results: dict[int, Enqueued]) -> None:
    for start in range(0, len(rows), _CHUNK):
        chunk = rows[start : start + _CHUNK]
        try:
            created = set(session.scalars(_INSERT, _arrays(chunk), bind_arguments=BOUND))
        except IntegrityError as error:
            raise _refused(error, chunk) from error
        for row in chunk:
            if row.id in created:
                results[row.index] = Enqueued(row.id, created=True)


def _find(session: Session, rows: Sequence[_Row], results: dict[int, Enqueued]) -> None:
    """The jobs that hold the keys of ``rows``."""
    for statement, key in ((_BY_IDEMPOTENCY_KEY, "idempotency_key"), (_BY_DEDUP_KEY, "dedup_key")):
        wanted = [row for row in rows if row.index not in results and getattr(row.job, key) is not None]
        if not wanted:
            continue
        found = session.execute(
            statement,
            {
                "indexes": [row.index for row in wanted],
                "tenants": [row.job.tenant_id for row in wanted],
                "kinds": [row.job.kind for row in wanted],
                "keys": [getattr(row.job, key) for row in wanted],
            },
            bind_arguments=BOUND,
        )
        for index, job_id in found:
            results[index] = Enqueued(job_id, created=False)


def _serialize_crossing_keys(session: Session, rows: Sequence[_Row]) -> None:
    """Rows sorted by one key can still cross in the other: whoever brings both keys in one job waits for the rest.

    For those of the same tenants and kinds, roughly: keys of others cannot meet. Released by the end of the
    transaction, and so safe behind a transaction-mode pooler.
    """
    keyed = [row.job for row in rows if _has_key(row)]
    if not keyed:
        return
    crossing = any(job.idempotency_key and job.dedup_key for job in keyed)
    lock = func.pg_advisory_xact_lock if crossing else func.pg_advisory_xact_lock_shared
    buckets = sorted({crc32(job.tenant_id.bytes + job.kind.encode()) % _BUCKETS for job in keyed})
    bucket = func.unnest(literal(buckets, ARRAY(Integer()))).column_valued("bucket")
    session.execute(select(lock(func.hashtext("mdm.job keys"), bucket)), bind_arguments=BOUND)


def _refused(error: IntegrityError, rows: Sequence[_Row]) -> Exception:
    if "job_tenant_fk" not in str(error.orig):
        return error
    tenants = sorted({row.job.tenant_id for row in rows})
    named = ", ".join(str(tenant) for tenant in tenants[:3]) + (", ..." if len(tenants) > 3 else "")
    return UnknownTenant(
        f"mdm.tenant has no row for a job's tenant_id (here: {named}); roll back, add the tenant in the same "
        "transaction or before, and try again; work that belongs to no tenant goes to jobqueue.SYSTEM_TENANT_ID"
    )


def _autoflush(session: Session) -> None:
    """As SQLAlchemy does before a query: a tenant that was just added must be there before its job."""
    # Called from within a flush event there is nothing to flush, and SQLAlchemy has no public way to ask
    if session.autoflush and not session._flushing:
        session.flush()


def _arrays(rows: Sequence[_Row]) -> dict[str, list[Any]]:
    jobs = [row.job for row in rows]
    return {
        "ids": [row.id for row in rows],
        "tenants": [job.tenant_id for job in jobs],
        "kinds": [job.kind for job in jobs],
        "payloads": [job.payload for job in jobs],
        "priorities": [job.priority for job in jobs],
        "times": [job.available_at for job in jobs],
        "delays": [job.delay for job in jobs],
        "limits": [job.max_attempts for job in jobs],
        "authors": [job.created_by for job in jobs],
        "idempotency_keys": [job.idempotency_key for job in jobs],
        "dedup_keys": [job.dedup_key for job in jobs],
    }


_COLUMNS: Final[dict[str, tuple[str, TypeEngine[Any]]]] = {
    "id": ("ids", Uuid()),
    "tenant_id": ("tenants", Uuid()),
    "job_kind": ("kinds", JobKindType()),
    "payload": ("payloads", JSONB()),
    "priority": ("priorities", SmallInteger()),
    "available_at": ("times", DateTime(timezone=True)),
    "delay": ("delays", Interval()),
    "max_attempts": ("limits", Integer()),
    "created_by": ("authors", Text()),
    "idempotency_key": ("idempotency_keys", Text()),
    "dedup_key": ("dedup_keys", Text()),
}


def _insert_statement() -> Any:
    """One statement for any number of rows, in the order given, and so in the order of their keys."""
    new = (
        func.unnest(*(bindparam(name, type_=ARRAY(type_)) for name, type_ in _COLUMNS.values()))
        .table_valued(*_COLUMNS, with_ordinality="position")
        .render_derived(name="new")
    )
    columns = [name for name in _COLUMNS if name != "delay"]
    due = func.coalesce(new.c.available_at, func.clock_timestamp() + new.c.delay, func.now())
    rows = select(*(due if name == "available_at" else new.c[name] for name in columns)).order_by(new.c.position)
    return insert(JOB).from_select(columns, rows).on_conflict_do_nothing().returning(JOB.c.id)


def _holders(key: Any, *conditions: Any) -> Any:
    wanted = (
        func.unnest(
            bindparam("indexes", type_=ARRAY(Integer())),
            bindparam("tenants", type_=ARRAY(Uuid())),
            bindparam("kinds", type_=ARRAY(JobKindType())),
            bindparam("keys", type_=ARRAY(Text())),
        )
        .table_valued("index", "tenant_id", "job_kind", "key")
        .render_derived(name="wanted")
    )
    return select(wanted.c.index, Job.id).where(
        Job.tenant_id == cast(wanted.c.tenant_id, Uuid()),
        Job.job_kind == cast(wanted.c.job_kind, JobKindType()),
        key == wanted.c.key,
        *conditions,
    )


_INSERT: Final = _insert_statement()
_BY_IDEMPOTENCY_KEY: Final = _holders(Job.idempotency_key)
_BY_DEDUP_KEY: Final = _holders(Job.dedup_key, Job.status.in_(sorted(ACTIVE)))
