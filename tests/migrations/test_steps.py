"""Up, down and up again, step by step; two at once; within the caller's transaction."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Engine, inspect, text
from sqlalchemy.exc import ProgrammingError

from jobqueue import migrations
from jobqueue.errors import SchemaOutOfDate
from jobqueue.models import SYSTEM_TENANT_ID, Base
from tests.migrations.conftest import REPOSITORY
from tests.support.catalog import Catalog, catalog, difference

REVISIONS = [
    revision.revision
    for revision in reversed(list(ScriptDirectory.from_config(migrations.alembic_config()).walk_revisions()))
]


def catalog_of(engine: Engine) -> Catalog:
    with engine.connect() as connection:
        return catalog(connection)


def revision_of(engine: Engine) -> str | None:
    with engine.connect() as connection:
        return migrations.current(connection)


def test_the_head_is_the_newest_revision() -> None:
    assert REVISIONS[-1] == migrations.HEAD


@pytest.mark.parametrize("position", range(len(REVISIONS)), ids=REVISIONS)
def test_up_down_and_up_again(position: int, empty_engine: Engine, empty_database_url: str) -> None:
    revision, before = REVISIONS[position], ["base", *REVISIONS][position]
    below: Catalog = set()
    if before != "base":
        migrations.upgrade(empty_database_url, before)
        below = catalog_of(empty_engine)

    migrations.upgrade(empty_database_url, revision)
    above = catalog_of(empty_engine)
    migrations.downgrade(empty_database_url, before)
    assert difference(below, catalog_of(empty_engine)) == []
    assert revision_of(empty_engine) == (None if before == "base" else before)

    migrations.upgrade(empty_database_url, revision)
    assert difference(above, catalog_of(empty_engine)) == []
    assert revision_of(empty_engine) == revision


def test_the_system_tenant_comes_with_the_schema(engine: Engine) -> None:
    with engine.connect() as connection:
        tenants = connection.execute(text("SELECT id, name FROM mdm.tenant")).all()

    assert tenants == [(SYSTEM_TENANT_ID, "system")]


def test_the_schema_stays_where_the_application_has_tables_in_it(empty_engine: Engine, empty_database_url: str) -> None:
    with empty_engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA mdm"))
        connection.execute(text("CREATE TABLE mdm.customer (id int)"))

    migrations.upgrade(empty_database_url)
    migrations.downgrade(empty_database_url, "base")

    assert inspect(empty_engine).get_table_names("mdm") == ["customer", migrations.VERSION_TABLE]


def test_two_upgrades_at_once_both_succeed(empty_engine: Engine, empty_database_url: str) -> None:
    program = "import sys; from jobqueue import migrations; migrations.upgrade(sys.argv[1])"
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    processes = [
        subprocess.Popen([sys.executable, "-c", program, empty_database_url], env=environment) for _ in range(4)
    ]

    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0, 0]
    assert revision_of(empty_engine) == migrations.HEAD


def test_within_a_connections_transaction_the_caller_decides(empty_engine: Engine) -> None:
    with empty_engine.connect() as connection:
        migrations.upgrade(connection)
        assert migrations.check(connection) == []
        connection.rollback()
        assert not inspect(connection).has_schema("mdm")
        connection.rollback()

        migrations.upgrade(connection)
        connection.commit()
    assert revision_of(empty_engine) == migrations.HEAD


def test_a_failed_revision_leaves_the_earlier_ones_in_place(empty_engine: Engine, empty_database_url: str) -> None:
    migrations.upgrade(empty_database_url, "jobqueue_0001")
    with empty_engine.begin() as connection:
        connection.execute(text("CREATE TABLE mdm.email_log ()"))

    with pytest.raises(ProgrammingError, match="email_log"):
        migrations.upgrade(empty_database_url)
    assert revision_of(empty_engine) == "jobqueue_0002"


def test_upgrade_refuses_what_another_environment_made(empty_engine: Engine, empty_database_url: str) -> None:
    Base.metadata.create_all(empty_engine)

    with pytest.raises(SchemaOutOfDate, match="run `alembic upgrade heads`"):
        migrations.upgrade(empty_database_url)
    assert not inspect(empty_engine).has_table(migrations.VERSION_TABLE, "mdm")


def test_a_revision_of_tomorrow_stops_upgrade_with_an_explanation(engine: Engine, database_url: str) -> None:
    with engine.begin() as connection:
        connection.execute(text("UPDATE mdm.jobqueue_version SET version_num = 'jobqueue_9999'"))

    with pytest.raises(SchemaOutOfDate, match=r"'jobqueue_9999'.*needs a later version"):
        migrations.upgrade(database_url)


def test_a_role_that_may_not_create_schemas_can_migrate(empty_engine: Engine, empty_database_url: str) -> None:
    with empty_engine.begin() as connection:
        database = connection.scalar(text("SELECT current_database()"))
        role = f"{database}_owner"
        connection.execute(text(f"CREATE ROLE {role}"))
        connection.execute(text("CREATE SCHEMA mdm"))
        connection.execute(text(f"GRANT ALL ON SCHEMA mdm TO {role}"))
    try:
        with empty_engine.begin() as connection:
            connection.execute(text(f"SET LOCAL ROLE {role}"))
            migrations.upgrade(connection)
            migrations.downgrade(connection, "base")
            migrations.upgrade(connection)
            assert migrations.check(connection) == []
    finally:
        with empty_engine.begin() as connection:
            connection.execute(text(f"DROP OWNED BY {role}"))
            connection.execute(text(f"DROP ROLE {role}"))


@pytest.mark.parametrize(
    ("given", "driver"),
    [
        ("postgresql://ada@db/shop", "postgresql+psycopg"),
        ("postgres://ada@db/shop", "postgresql+psycopg"),
        ("postgresql+asyncpg://ada@db/shop", "postgresql+psycopg"),
        ("postgresql+psycopg2://ada@db/shop", "postgresql+psycopg2"),
    ],
)
def test_a_url_without_a_usable_driver_gets_psycopg(given: str, driver: str) -> None:
    assert migrations.database_url(given) == URL.create(driver, "ada", host="db", database="shop")
