"""``jobqueue jobs list``: a look at many jobs, never at their payloads."""

from __future__ import annotations

import os
import pty
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

from jobqueue import SYSTEM_TENANT_ID
from tests.cli.conftest import COMMAND
from tests.support.factories import JobFactory, TenantFactory

SECRET = "S3CRET-1"


def ago(**span):
    return datetime.now(UTC) - timedelta(**span)


@pytest.fixture
def listed(run_json):
    """The ids that ``jobs list`` shows."""
    return lambda *args: [job["id"] for job in run_json("jobs", "list", *args)]


def test_shows_the_newest_first_in_aligned_lines_that_do_not_wrap(run, session):
    first = JobFactory(dlq=True, last_error="ConnectionRefusedError: mail.example.com\n  smtp.py:25 in connect")
    second = JobFactory(available_at=datetime.now(UTC) + timedelta(minutes=10, seconds=30))
    session.commit()
    header, *lines = run("jobs", "list").stdout.splitlines()
    assert header.split() == ["ID", "KIND", "STATUS", "ATTEMPTS", "TENANT", "AGE", "AVAILABLE", "ERROR"]
    tenant = str(SYSTEM_TENANT_ID)
    assert [line.split()[:5] for line in lines] == [
        [str(second.id), "email_send", "pending", "0/8", tenant],
        [str(first.id), "email_send", "dlq", "8/8", tenant],
    ]
    assert " in 10m" in lines[0]
    assert lines[1].endswith("ConnectionRefusedError: mail.example.com")


def test_an_error_is_cut_and_cannot_move_the_cursor(run, session):
    JobFactory(dlq=True, last_error="\x1b[2J\u202e" + "x" * 5000)
    session.commit()
    line = run("jobs", "list").stdout.splitlines()[1]
    assert "\\x1b[2J\\u202exxx" in line
    assert line.endswith("xxx...")
    assert len(line) < 250


@pytest.mark.parametrize("args", [[], ["--json"]])
def test_never_shows_payloads(run, session, args):
    JobFactory(payload={"password": SECRET})
    session.commit()
    assert SECRET not in run("jobs", "list", *args).output


def test_filters_by_each_thing_alone_and_by_all_together(listed, session):
    tenant = TenantFactory().id
    old = JobFactory(dlq=True, tenant_id=tenant, job_kind="reindex", created_at=ago(hours=3), last_error="Disk FULL")
    new = JobFactory(failed=True, last_error="100% wrong")
    pending = JobFactory()
    session.commit()
    old_id, new_id, pending_id = str(old.id), str(new.id), str(pending.id)
    assert listed() == [pending_id, new_id, old_id]
    assert listed("--status", "dlq") == [old_id]
    assert listed("--status", "dlq", "--status", "failed") == [new_id, old_id]
    assert listed("--kind", "reindex") == [old_id]
    assert listed("--kind", "reindex,email_send") == [pending_id, new_id, old_id]
    assert listed("--kind", "no_such_kind") == []
    assert listed("--tenant", tenant) == [old_id]
    assert listed("--tenant", tenant, "--tenant", SYSTEM_TENANT_ID) == [pending_id, new_id, old_id]
    assert listed("--older-than", "2h") == [old_id]
    assert listed("--older-than", "4h") == []
    assert listed("--error", "disk full") == [old_id]
    assert listed("--error", "100%") == [new_id]
    assert listed("--error", "1%0") == []
    assert listed("--status", "dlq", "--kind", "reindex", "--tenant", tenant, "--older-than", "2h") == [old_id]
    assert listed("--status", "failed", "--kind", "reindex") == []


def test_says_when_there_are_more_than_shown(run, listed, session):
    jobs = JobFactory.create_batch(3)
    session.commit()
    assert listed("--limit", 2) == [str(jobs[2].id), str(jobs[1].id)]
    assert "--limit" in run("jobs", "list", "--limit", 2).stderr
    assert run("jobs", "list", "--limit", 3).stderr == ""


def test_nothing_to_show_is_said_and_is_an_empty_array_in_json(run, run_json):
    assert run("jobs", "list").stdout == "no job matches\n"
    assert run_json("jobs", "list") == []


def test_json_has_every_column_but_the_payload_with_times_in_utc(run_json, session):
    JobFactory(running=True, payload={"password": SECRET})
    session.commit()
    (job,) = run_json("jobs", "list")
    assert (job["status"], job["attempts"], job["last_error"]) == ("running", 1, None)
    assert datetime.fromisoformat(job["created_at"]).utcoffset() == timedelta(0)
    assert "payload" not in job


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_a_terminal_gets_a_table_with_whole_ids(worker_environment, session, columns):
    job = JobFactory(dlq=True, last_error="[bold]not markup[/nonsense] " + "x" * 100)
    session.commit()
    ours, theirs = pty.openpty()
    environment = worker_environment | {"TERM": "xterm", "COLUMNS": str(columns), "LINES": "40"}
    subprocess.run([*COMMAND, "jobs", "list"], stdout=theirs, env=environment, check=True, timeout=60)
    os.close(theirs)
    header, line = read_terminal(ours).splitlines()
    assert "\x1b[1m" in header
    assert line.startswith(f"{job.id}  email_send  dlq ")
    assert "[bold]n" in line
    assert len(line.rstrip()) <= max(columns, 110)


def read_terminal(descriptor):
    """What was written to a terminal whose other end is closed."""
    shown = b""
    with open(descriptor, "rb", buffering=0) as terminal:
        try:
            while data := terminal.read(1000):
                shown += data
        except OSError:  # how Linux ends a terminal
            pass
    return shown.decode()
