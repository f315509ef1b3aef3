"""The command as a whole: exit codes, one-line errors, no secrets, and how it ends when it is cut off."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

import jobqueue
from jobqueue.cli.database import CONNECT_SECONDS, Configuration, place
from jobqueue.settings import postgres_url
from tests.cli.conftest import COMMAND
from tests.support.factories import JobFactory
from tests.support.waiting import wait_until

SECRET = "S3CRET-1"


def test_version_is_the_one_of_the_package(run):
    assert run("--version").stdout == f"jobqueue {jobqueue.__version__}\n"


def test_python_m_jobqueue_is_the_command(process):
    result = process("db", "check")
    assert (result.returncode, result.stderr) == (0, "")
    assert "fits jobqueue" in result.stdout


def test_help_says_what_each_exit_code_means(run):
    assert "4 database not reachable" in " ".join(run("--help").stdout.split())


@pytest.mark.parametrize("args", [["nonsense"], ["stats", "--nonsense"], ["jobs", "show", "7"], ["worker"]])
def test_wrong_usage_ends_with_2(run, args):
    assert "Error: " in run(*args, code=2).stderr


def test_no_database_url_is_a_configuration_error(run_anywhere):
    result = run_anywhere("stats", code=3)
    assert result.stderr == "Error: DATABASE_URL is not set; set it to postgresql://user:password@host/name\n"


WITHOUT_LIBPQ = """
import sys
from importlib.abc import MetaPathFinder

class Without(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in ("psycopg_c", "psycopg_binary") or name == "psycopg.pq.pq_ctypes":
            raise ImportError("libpq library not found")

sys.meta_path.insert(0, Without())
from jobqueue.cli import main
sys.argv = ["jobqueue", *sys.argv[1:]]
main()
"""
NEEDING_PSYCOPG = [
    ["stats"],
    ["jobs", "list"],
    ["db", "upgrade"],
    ["enqueue", "reindex", "--tenant", "0" * 32],
    ["worker", "app:handlers"],
    ["worker", "eager:handlers"],
]


@pytest.fixture
def without_libpq(worker_environment, tmp_path):
    """``jobqueue ARGS`` as a process that finds no libpq, beside two applications."""
    registry = "from jobqueue import Handlers\nhandlers = Handlers()\n@handlers.register('reindex')\ndef f(p): pass\n"
    (tmp_path / "app.py").write_text(registry)
    (tmp_path / "eager.py").write_text(f"import psycopg\n{registry}")

    def run(*args, **environment):
        return subprocess.run(
            [sys.executable, "-c", WITHOUT_LIBPQ, *args],
            cwd=tmp_path,
            env=worker_environment | environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


@pytest.mark.parametrize("args", NEEDING_PSYCOPG, ids=" ".join)
def test_without_libpq_a_command_ends_with_the_remedy_in_one_line(without_libpq, args):
    result = without_libpq(*args)
    assert (result.returncode, result.stdout, result.stderr) == (
        3,
        "",
        "Error: psycopg cannot be loaded (no pq wrapper available); "
        "run `pip install 'psycopg[binary]'`, which brings libpq\n",
    )


def test_an_implementation_of_psycopg_that_was_asked_for_and_is_not_there_is_named(without_libpq):
    result = without_libpq("stats", PSYCOPG_IMPL="binary")
    assert result.returncode == 3
    assert "'binary'" in result.stderr
    assert "or unset PSYCOPG_IMPL" in result.stderr
    assert result.stderr.count("\n") == 1


def test_what_needs_no_database_works_without_libpq(without_libpq):
    assert without_libpq("--help").returncode == 0
    assert "CREATE TABLE" in without_libpq("db", "upgrade", "--sql").stdout


def test_a_wrong_setting_is_named_without_a_traceback(run, monkeypatch):
    monkeypatch.setenv("JOBQUEUE_STALE_AFTER", "soon")
    assert run("stats", code=3).stderr.startswith("Error: JOBQUEUE_STALE_AFTER: ")


def test_an_option_for_the_database_goes_before_the_environment(run, empty_database_url):
    assert "no tables of jobqueue" in run("--database-url", empty_database_url, "db", "check", code=1).stdout


@pytest.mark.parametrize("command", [["stats"], ["jobs", "list"], ["db", "upgrade"], ["db", "check"]])
@pytest.mark.parametrize("given", ["in the user part", "in the query"])
def test_a_database_that_cannot_be_reached_is_named_without_its_password(run_anywhere, command, given):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        url = f"postgresql://ada:{SECRET}@127.0.0.1:{port}/shop"
        if given == "in the query":
            url = f"postgresql://ada@127.0.0.1:{port}/shop?password={SECRET}"
        result = run_anywhere(*command, database=url, code=4)
    assert SECRET not in result.output
    assert result.stderr.startswith(f"Error: the database 'shop' on 127.0.0.1:{port} cannot be reached: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("given", ["in the user part", "in the query"])
def test_a_worker_without_its_database_names_it_without_its_password(run_anywhere, application, given):
    module = application(
        "from jobqueue import Handlers\nhandlers = Handlers()\n@handlers.register('reindex')\ndef f(p): pass\n"
    )
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{closed.getsockname()[1]}/shop"
        url = f"postgresql://ada:{SECRET}@{where}"
        if given == "in the query":
            url = f"postgresql://ada@{where}?password={SECRET}"
        result = run_anywhere("worker", f"{module}:handlers", database=url, code=4)
    assert SECRET not in result.output
    assert where in result.stderr


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ada:pa@ss{SECRET}@127.0.0.1/shop",
        f"postgresql://ada:pass/{SECRET}",
        f"postgresql://ada:{SECRET}",
        f"mysql://ada:{SECRET}@127.0.0.1/shop",
        f"ada:{SECRET}@127.0.0.1",
    ],
)
def test_a_database_url_that_cannot_be_used_is_not_repeated(run_anywhere, url):
    for result in (run_anywhere("stats", database=url, code=3), run_anywhere("--database-url", url, "stats", code=3)):
        assert result.stderr.startswith("Error: ")
        assert SECRET not in result.output


def test_a_database_url_in_the_wrong_place_is_not_repeated(run):
    assert SECRET not in run(f"postgresql://ada:{SECRET}@127.0.0.1/shop", "stats", code=2).output


def test_a_connection_attempt_has_a_limit():
    assert Configuration("postgresql://h/d").url().query["connect_timeout"] == str(CONNECT_SECONDS)
    assert Configuration("postgresql://h/d?connect_timeout=3").url().query["connect_timeout"] == "3"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://u:p@db.example.com:6543/shop", "the database 'shop' on db.example.com:6543"),
        ("postgresql:///shop?host=/run/pg&port=5433", "the database 'shop' on /run/pg:5433"),
        ("postgresql:///shop", "the database 'shop' on the local socket"),
        ("postgresql://u@/shop?host=a&host=b", "the database 'shop' on a, b"),
    ],
)
def test_a_database_is_named_by_name_and_server(url, words):
    assert place(postgres_url(url)) == words


@pytest.mark.parametrize(
    "command",
    [
        ["stats"],
        ["jobs", "list"],
        ["jobs", "replay", "--all"],
        ["enqueue", "email_send", "--tenant", "00000000-0000-0000-0000-000000000000"],
    ],
)
def test_a_database_without_tables_is_a_schema_error_with_the_command_that_mends_it(
    run_anywhere, empty_database_url, command
):
    result = run_anywhere(*command, database=empty_database_url, code=3)
    assert "`jobqueue db upgrade`" in result.stderr
    assert result.stderr.count("\n") == 1


def test_what_the_database_refuses_is_told_in_one_line(run, engine):
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE mdm.job ADD CONSTRAINT house_rule CHECK (priority < 5)"))
    result = run("enqueue", "reindex", f'{{"key": "{SECRET}"}}', "--tenant", "0" * 32, code=1)
    assert "house_rule" in result.stderr
    assert result.stderr.count("\n") == 1
    assert SECRET not in result.output


def test_a_reader_that_goes_away_is_no_traceback(process, session: Session):
    JobFactory.create_batch(20)
    session.commit()
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed_pipe:
        result = process("jobs", "list", capture_output=False, stdout=closed_pipe, stderr=subprocess.PIPE)
    assert (result.returncode, result.stderr) == (141, "")


def test_ctrl_c_ends_with_130_and_one_line(worker_environment, session: Session, engine: Engine):
    job = JobFactory(dlq=True)
    session.commit()
    session.refresh(job, with_for_update=True)
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    replay = [*COMMAND, "jobs", "replay", str(job.id)]
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        subprocess.Popen(replay, env=worker_environment, stderr=subprocess.PIPE, text=True) as process,
    ):
        wait_until(lambda: connection.scalar(waiting), what="the replay to wait for the row")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "Error: interrupted\n")


def test_letters_that_the_terminal_lacks_are_escaped(process, session: Session, worker_environment):
    JobFactory(dlq=True, last_error="Zürich → Genf")
    session.commit()
    result = process("jobs", "list", env=worker_environment | {"PYTHONIOENCODING": "latin-1"}, encoding="latin-1")
    assert (result.returncode, result.stderr) == (0, "")
    assert "Zürich \\u2192 Genf" in result.stdout
