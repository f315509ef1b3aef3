"""``jobqueue db``: making the tables, and telling whether they fit."""

from __future__ import annotations

import json

from sqlalchemy import create_engine, text

from jobqueue import migrations


def execute(url, *statements):
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def test_upgrade_makes_the_tables_in_an_empty_database(run_anywhere, empty_database_url):
    assert "no tables" in run_anywhere("db", "check", database=empty_database_url, code=1).stdout
    result = run_anywhere("db", "upgrade", database=empty_database_url)
    assert result.stdout.endswith(f"has jobqueue's tables now, at {migrations.HEAD}\n")
    assert "fits jobqueue" in run_anywhere("db", "check", database=empty_database_url).stdout


def test_upgrade_of_what_is_up_to_date_says_so_and_changes_nothing(run):
    assert run("db", "upgrade").stdout.endswith(f"was up to date already, at {migrations.HEAD}\n")


def test_upgrade_goes_on_from_an_older_revision(run_anywhere, empty_database_url):
    migrations.upgrade(empty_database_url, to="jobqueue_0001")
    check = run_anywhere("db", "check", database=empty_database_url, code=1)
    assert f"at revision jobqueue_0001, this version needs {migrations.HEAD}: run `jobqueue db upgrade`" in check.stdout
    result = run_anywhere("db", "upgrade", database=empty_database_url)
    assert f"was upgraded from jobqueue_0001 to {migrations.HEAD}" in result.stdout


def test_upgrade_from_a_revision_of_a_newer_version_names_the_remedy(run, database_url):
    execute(database_url, f"UPDATE mdm.{migrations.VERSION_TABLE} SET version_num = 'jobqueue_9999'")
    result = run("db", "upgrade", code=3)
    assert "jobqueue_9999" in result.stderr
    assert result.stderr.endswith("a later one needs a later version\n")


def test_upgrade_leaves_tables_to_the_application_that_migrates_them(run, database_url):
    execute(
        database_url,
        f"DROP TABLE mdm.{migrations.VERSION_TABLE}",
        "CREATE TABLE alembic_version (version_num text)",
        f"INSERT INTO alembic_version VALUES ('{migrations.HEAD}')",
    )
    assert "run `alembic upgrade heads`" in run("db", "upgrade", code=3).stderr
    run("db", "check")


def test_upgrade_sql_is_a_script_that_makes_the_same_tables(run_anywhere, empty_database_url):
    script = run_anywhere("db", "upgrade", "--sql").stdout
    engine = create_engine(empty_database_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        # By the driver's own cursor: the script is many statements
        connection.connection.cursor().execute(script)
    engine.dispose()
    assert run_anywhere("db", "check", "--json", database=empty_database_url).stdout == "[]\n"


def test_check_lists_what_is_missing_with_its_remedy(run, database_url):
    execute(database_url, "ALTER TABLE mdm.email_log DROP COLUMN reply")
    (problem,) = json.loads(run("db", "check", "--json", code=1).stdout)
    assert problem["problem"] == "the table mdm.email_log lacks the columns reply"
    assert "jobqueue db upgrade" in problem["remedy"]
