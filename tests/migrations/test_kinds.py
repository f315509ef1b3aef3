"""``op.add_job_kind`` and ``op.drop_job_kind``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, OperationalError

from jobqueue.errors import InvalidJob
from jobqueue.migrations import KindInUse
from jobqueue.migrations.kinds import AddJobKind, DropJobKind
from jobqueue.models import SYSTEM_TENANT_ID
from tests.support.catalog import Catalog, catalog, difference


def operations(connection: Connection) -> Any:
    """Alembic's ``op`` on this connection; its members are added at run time."""
    return Operations(MigrationContext.configure(connection))


def run(engine: Engine, change: Callable[[Any], object]) -> None:
    with engine.begin() as connection:
        change(operations(connection))


def execute(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def catalog_of(engine: Engine) -> Catalog:
    with engine.connect() as connection:
        return catalog(connection)


def insert_job(engine: Engine, kind: str, status: str = "pending") -> None:
    completed_at = "now()" if status in ("done", "failed", "dlq") else "NULL"
    execute(
        engine,
        "INSERT INTO mdm.job (tenant_id, job_kind, status, completed_at) "
        f"VALUES ('{SYSTEM_TENANT_ID}', '{kind}', '{status}', {completed_at})",
    )


def offline_script(change: Callable[[Any], object]) -> str:
    script = StringIO()
    context = MigrationContext.configure(dialect_name="postgresql", opts={"as_sql": True, "output_buffer": script})
    change(Operations(context))
    return script.getvalue()


def run_offline(engine: Engine, change: Callable[[Any], object]) -> None:
    """Execute what ``--sql`` prints, as psql would, in one transaction."""
    with engine.begin() as connection:
        connection.connection.execute(offline_script(change))


RUNNERS = pytest.mark.parametrize("runner", [run, run_offline], ids=["online", "offline"])


@RUNNERS
def test_an_added_kind_can_be_used_after_the_commit(engine: Engine, runner: Any) -> None:
    runner(engine, lambda op: op.add_job_kind("ocr_extract"))

    insert_job(engine, "ocr_extract")
    assert ("label", "job_kind", 9, "ocr_extract") in catalog_of(engine)


def test_adding_a_kind_that_is_there_changes_nothing(engine: Engine) -> None:
    before = catalog_of(engine)

    run(engine, lambda op: op.add_job_kind("email_send"))

    assert difference(before, catalog_of(engine)) == []


@RUNNERS
def test_dropping_an_added_kind_restores_the_schema(engine: Engine, runner: Any) -> None:
    before = catalog_of(engine)
    run(engine, lambda op: op.add_job_kind("ocr_extract"))
    insert_job(engine, "email_send", "done")

    runner(engine, lambda op: op.drop_job_kind("ocr_extract"))

    assert difference(before, catalog_of(engine)) == []
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT job_kind::text FROM mdm.job")) == "email_send"


def test_dropping_a_kind_that_is_not_there_changes_nothing(engine: Engine) -> None:
    before = catalog_of(engine)

    run(engine, lambda op: op.drop_job_kind("ocr_extract"))

    assert difference(before, catalog_of(engine)) == []


def test_a_kind_in_use_is_not_dropped_and_its_jobs_are_counted(engine: Engine) -> None:
    for status in ("pending", "pending", "dlq"):
        insert_job(engine, "reindex", status)
    before = catalog_of(engine)

    with pytest.raises(KindInUse, match="'reindex' is in use and was not dropped: 2 pending, 1 dlq") as refusal:
        run(engine, lambda op: op.drop_job_kind("reindex"))

    assert refusal.value.counts == {"pending": 2, "dlq": 1}
    assert difference(before, catalog_of(engine)) == []


def test_the_offline_script_refuses_a_kind_in_use(engine: Engine) -> None:
    for status in ("pending", "pending", "dlq"):
        insert_job(engine, "reindex", status)

    with pytest.raises(Exception, match='"reindex" is in use and was not dropped: 2 pending, 1 dlq'):
        run_offline(engine, lambda op: op.drop_job_kind("reindex"))


@RUNNERS
def test_whatever_else_names_the_type_is_carried_over(engine: Engine, runner: Any) -> None:
    execute(
        engine,
        "CREATE TABLE public.schedule (id int PRIMARY KEY, kind mdm.job_kind NOT NULL DEFAULT 'email_send', "
        "kinds mdm.job_kind[] NOT NULL DEFAULT '{reindex}', \"Odd Name\" mdm.job_kind UNIQUE, "
        "CONSTRAINT schedule_kind_chk CHECK (kind <> 'bulk_import'), "
        'CONSTRAINT schedule_set_chk CHECK ("Odd Name" IS NOT NULL OR id > 0))',
        "CREATE INDEX ix_schedule_mail ON public.schedule (id) WHERE kind = 'email_send'",
        "CREATE INDEX ix_schedule_kind ON public.schedule (kind, id)",
        "CREATE TABLE public.part (id int, kind mdm.job_kind DEFAULT 'reindex') PARTITION BY RANGE (id)",
        "CREATE TABLE public.part_1 PARTITION OF public.part FOR VALUES FROM (0) TO (10)",
        "CREATE INDEX ix_part_mail ON public.part (id) WHERE kind = 'email_send'",
        "INSERT INTO public.schedule VALUES (1, 'reindex', '{email_send,virus_scan}', NULL)",
        "INSERT INTO public.part VALUES (1)",
    )
    before = definitions(engine)
    assert len(before) > 15

    runner(engine, lambda op: op.drop_job_kind("gin_backfill"))

    assert definitions(engine) == before
    with engine.connect() as connection:
        row = connection.execute(text("SELECT kind::text, kinds::text FROM public.schedule")).one()
        assert tuple(row) == ("reindex", "{email_send,virus_scan}")


def definitions(engine: Engine) -> set[tuple[object, ...]]:
    """Columns, constraints and indexes of the schema ``public``."""
    query = """
        SELECT 'column', attrelid::regclass::text, attname, format_type(atttypid, atttypmod),
               pg_get_expr(adbin, adrelid)
          FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
         WHERE attrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace) AND attnum > 0
        UNION ALL
        SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid), NULL
          FROM pg_constraint WHERE connamespace = 'public'::regnamespace
        UNION ALL
        SELECT 'index', indrelid::regclass::text, indexrelid::regclass::text, pg_get_indexdef(indexrelid), NULL
          FROM pg_index WHERE indrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace)
    """
    with engine.connect() as connection:
        return {tuple(row) for row in connection.execute(text(query))}


def test_a_row_of_another_table_keeps_its_kind(engine: Engine) -> None:
    execute(
        engine,
        "CREATE TABLE public.schedule (kind mdm.job_kind)",
        "INSERT INTO public.schedule VALUES ('reindex')",
    )
    before = catalog_of(engine)

    with pytest.raises(DBAPIError, match=r'invalid input value for enum mdm\.job_kind: "reindex"'):
        run(engine, lambda op: op.drop_job_kind("reindex"))

    assert difference(before, catalog_of(engine)) == []


def test_dropping_gives_up_where_it_does_not_get_the_lock(engine: Engine) -> None:
    holding, finished = threading.Event(), threading.Event()

    def hold() -> None:
        with engine.begin() as connection:
            connection.execute(text("SELECT count(*) FROM mdm.job"))
            holding.set()
            finished.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    holding.wait(60)
    try:
        with engine.begin() as connection:
            connection.execute(text("SET LOCAL lock_timeout = '50ms'"))
            with pytest.raises(OperationalError, match="lock timeout"):
                operations(connection).drop_job_kind("reindex")
    finally:
        finished.set()
        holder.join(60)


def test_the_lock_timeout_is_five_seconds_unless_set(engine: Engine) -> None:
    with engine.begin() as connection:
        operations(connection).drop_job_kind("reindex")
        assert connection.scalar(text("SHOW lock_timeout")) == "5s"
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL lock_timeout = '7s'"))
        operations(connection).drop_job_kind("virus_scan")
        assert connection.scalar(text("SHOW lock_timeout")) == "7s"
    with engine.begin() as connection:
        assert connection.scalar(text("SHOW lock_timeout")) == "0"


@pytest.mark.parametrize(
    "name", ["", "Upper", "with space", "1st", "quo'te", "dash-ed", "x" * 64, "ümlaut", "trailing\n"]
)
def test_a_name_that_no_job_may_have_is_refused_before_any_sql(name: str) -> None:
    for operation in (AddJobKind, DropJobKind):
        with pytest.raises(InvalidJob, match="lower case letters"):
            operation(name)


def test_the_longest_name_is_accepted(engine: Engine) -> None:
    run(engine, lambda op: op.add_job_kind("x" * 63))

    insert_job(engine, "x" * 63)


def test_each_operation_reverses_into_the_other() -> None:
    added = AddJobKind("ocr_extract")

    assert isinstance(added.reverse(), DropJobKind)
    assert added.reverse().reverse().to_diff_tuple() == added.to_diff_tuple() == ("add_job_kind", "ocr_extract")
