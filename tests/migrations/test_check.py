"""``check`` and ``current``: what they find, what they say, and that they change nothing."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, text

from jobqueue import migrations
from jobqueue.migrations import Problem
from jobqueue.models import Base
from tests.migrations.conftest import Alembic


def check(engine: Engine) -> list[Problem]:
    """The problems found, in a transaction that could not write."""
    with engine.connect().execution_options(postgresql_readonly=True) as connection:
        problems = migrations.check(connection)
    assert all("\n" not in problem.problem + problem.remedy for problem in problems)
    return problems


def found(engine: Engine) -> list[str]:
    return [problem.problem for problem in check(engine)]


def execute(engine: Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement))


def test_a_migrated_database_has_no_problem(engine: Engine) -> None:
    assert check(engine) == []


def test_an_empty_database_is_one_problem(empty_engine: Engine) -> None:
    [problem] = check(empty_engine)

    assert problem.problem == "the database has no tables of jobqueue (schema 'mdm')"
    assert "jobqueue db upgrade" in problem.remedy
    assert "alembic upgrade heads" in problem.remedy


@pytest.mark.parametrize("revision", ["jobqueue_0001", "jobqueue_0002"])
def test_a_database_behind_is_one_problem(empty_engine: Engine, empty_database_url: str, revision: str) -> None:
    migrations.upgrade(empty_database_url, revision)

    assert found(empty_engine) == [f"the database is at revision {revision}, this version needs {migrations.HEAD}"]


def test_a_revision_in_the_hosts_version_table_counts(empty_engine: Engine, alembic: Alembic) -> None:
    alembic("upgrade", "jobqueue@jobqueue_0002")

    assert found(empty_engine) == ["the database is at revision jobqueue_0002, this version needs jobqueue_0003"]
    alembic("upgrade", "heads")
    assert check(empty_engine) == []


def test_tables_without_a_recorded_revision_are_looked_at_themselves(empty_engine: Engine) -> None:
    Base.metadata.create_all(empty_engine)
    assert check(empty_engine) == []

    execute(empty_engine, "DROP TABLE mdm.email_log")
    assert found(empty_engine) == ["the table mdm.email_log is missing"]


def test_a_revision_of_tomorrow_is_no_problem_by_itself(engine: Engine) -> None:
    execute(engine, "UPDATE mdm.jobqueue_version SET version_num = 'jobqueue_9999'")

    assert check(engine) == []


def test_a_missing_column_is_named(engine: Engine) -> None:
    execute(engine, "ALTER TABLE mdm.job DROP COLUMN last_error, DROP COLUMN created_by")

    assert found(engine) == ["the table mdm.job lacks the columns last_error, created_by"]


def test_a_missing_bundled_kind_is_named_with_the_call_that_adds_it(engine: Engine) -> None:
    execute(engine, "ALTER TYPE mdm.job_kind RENAME VALUE 'virus_scan' TO 'virus_check'")

    [problem] = check(engine)
    assert problem.problem == "the enum mdm.job_kind lacks the kinds virus_scan"
    assert 'op.add_job_kind("virus_scan")' in problem.remedy


def test_missing_kinds_keeps_the_order_of_those_it_was_given(engine: Engine) -> None:
    with engine.connect() as connection:
        missing = migrations.missing_kinds(connection, ["ocr_extract", "email_send", "invoice_pdf"])

    assert missing == ["ocr_extract", "invoice_pdf"]


def test_without_the_enum_every_kind_is_missing(empty_engine: Engine) -> None:
    with empty_engine.connect() as connection:
        assert migrations.missing_kinds(connection, ["email_send"]) == ["email_send"]
        assert migrations.current(connection) is None
