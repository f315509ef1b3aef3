"""``jobqueue jobs replay``, ``discard`` and ``cancel``: what was meant, and never more."""

from __future__ import annotations

import getpass
import json
import os
import pty
import subprocess
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import select, text

from jobqueue import AuditEntry, Job, JobStatus
from jobqueue.errors import JobNotFound
from tests.cli.conftest import COMMAND
from tests.support.factories import JobFactory, TenantFactory


@pytest.fixture
def statuses(session):
    """The status of each job by id; None for one that is gone."""

    def read(*jobs):
        found = {job.id: job.status for job in session.execute(select(Job.id, Job.status))}
        session.rollback()
        return [found.get(job) for job in jobs]

    return read


@pytest.fixture
def make(session):
    """Adds jobs and returns their ids."""

    def add(count=1, **values):
        ids = [job.id for job in JobFactory.create_batch(count, **values)]
        session.commit()
        return ids

    return add


@pytest.mark.parametrize(
    ("verb", "past", "before", "after"),
    [
        ("replay", "replayed", "dlq", JobStatus.PENDING),
        ("replay", "replayed", "failed", JobStatus.PENDING),
        ("discard", "discarded", "dlq", None),
        ("cancel", "cancelled", None, JobStatus.FAILED),
    ],
)
def test_one_job_by_id_is_changed_without_a_question_and_audited(
    run, make, statuses, session, verb, past, before, after
):
    (job, other) = make(2, **({before: True} if before else {}))
    assert run("jobs", verb, job).stdout == f"{past} job {job}\n"
    (untouched,) = statuses(other)
    assert statuses(job) == [after]
    assert untouched is not after
    entry = session.scalars(select(AuditEntry)).one()
    assert (entry.action, entry.job_id, entry.actor) == (verb, job, f"cli:{getpass.getuser()}")


def test_the_actor_and_the_reason_can_be_named(run, make, session):
    (job,) = make()
    run("jobs", "cancel", job, "--actor", "ada", "--reason", "wrong list")
    assert session.scalars(select(AuditEntry.actor)).one() == "ada"
    assert session.get_one(Job, job).last_error == "cancelled by ada: wrong list"


def test_neither_ids_nor_filters_is_refused(run, make, statuses):
    jobs = make(2, dlq=True)
    for args in (["--yes"], ["--yes", "--limit", "1"], ["--dry-run"]):
        assert "or --all" in run("jobs", "discard", *args, code=2).stderr
    assert statuses(*jobs) == [JobStatus.DLQ] * 2


def test_all_means_all_that_can_be_changed(run, make, statuses):
    dead, failed, pending = make(2, dlq=True), make(failed=True), make()
    assert run("jobs", "discard", "--all", "--yes").stdout == "discarded 3 jobs\n"
    assert statuses(*dead, *failed, *pending) == [None, None, None, JobStatus.PENDING]


def test_ids_with_all_or_a_limit_are_refused(run, make):
    (job,) = make(dlq=True)
    for more in (["--all"], ["--limit", "1"]):
        assert "leave out --all and --limit" in run("jobs", "replay", job, *more, code=2).stderr


def test_a_filter_changes_what_matches(run, make, statuses, session):
    tenant = TenantFactory().id
    long_ago = datetime.now(UTC) - timedelta(days=3)
    wanted = make(2, dlq=True, tenant_id=tenant, job_kind="reindex", created_at=long_ago, last_error="disk full")
    others = [
        *make(dlq=True, job_kind="reindex", created_at=long_ago, last_error="disk full"),
        *make(dlq=True, tenant_id=tenant, created_at=long_ago, last_error="disk full"),
        *make(dlq=True, tenant_id=tenant, job_kind="reindex", last_error="disk full"),
        *make(dlq=True, tenant_id=tenant, job_kind="reindex", created_at=long_ago),
        *make(failed=True, tenant_id=tenant, job_kind="reindex", created_at=long_ago, last_error="disk full"),
    ]
    before = statuses(*others)
    filters = ["--status", "dlq", "--kind", "reindex", "--tenant", tenant, "--older-than", "2d", "--error", "DISK"]
    run("jobs", "replay", *filters, "--yes")
    assert statuses(*wanted) == [JobStatus.PENDING] * 2
    assert statuses(*others) == before


def test_a_limit_takes_the_oldest(run, make, statuses):
    jobs = make(3, dlq=True)
    run("jobs", "replay", "--status", "dlq", "--limit", 2, "--yes")
    assert statuses(*jobs) == [JobStatus.PENDING, JobStatus.PENDING, JobStatus.DLQ]


def test_a_limit_counts_jobs_with_and_without_a_dedup_key_together(run, make, statuses):
    jobs = [job for key in ("a", None, "b", None) for job in make(dlq=True, dedup_key=key)]
    assert run("jobs", "replay", "--status", "dlq", "--limit", 2, "--yes").stdout == "replayed 2 jobs\n"
    assert statuses(*jobs) == [JobStatus.PENDING, JobStatus.PENDING, JobStatus.DLQ, JobStatus.DLQ]


def test_a_filter_narrows_down_ids(run, make, statuses):
    first, second = [*make(dlq=True, last_error="disk full"), *make(dlq=True, last_error="no route")]
    unknown = uuid4()
    result = run("jobs", "replay", first, second, unknown, "--error", "disk", code=1)
    assert result.stdout == f"replayed job {first}\n"
    assert f"refused: job {second} does not match the filters given\n" in result.stderr
    assert f"refused: no job {unknown}" in result.stderr
    assert statuses(first, second) == [JobStatus.PENDING, JobStatus.DLQ]


def test_refused_ids_are_told_with_the_reason_and_the_others_are_changed(run, make, statuses):
    (dead,), (pending,), unknown = make(dlq=True), make(), uuid4()
    result = run("jobs", "replay", dead, pending, unknown, "--yes", code=1)
    assert result.stdout == f"replayed job {dead}\n"
    assert f"refused: job {pending} is pending; only a dlq or failed job can be replayed\n" in result.stderr
    assert f"refused: no job {unknown}" in result.stderr
    assert statuses(dead, pending) == [JobStatus.PENDING, JobStatus.PENDING]


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_replay_whose_dedup_key_is_in_use_names_the_job_that_has_it(run, make, statuses, dry):
    (dead,) = make(dlq=True, dedup_key="k")
    (holder,) = make(dedup_key="k")
    result = run("jobs", "replay", dead, *dry, code=1)
    assert f"job {dead} was not replayed: its dedup_key is in use by job {holder}" in result.stderr
    assert statuses(dead, holder) == [JobStatus.DLQ, JobStatus.PENDING]


def test_a_replay_whose_idempotency_key_was_enqueued_again_has_nobody_in_its_way(run, make, statuses):
    (dead,) = make(dlq=True, idempotency_key="k")
    tenant = "0" * 32
    again = run("enqueue", "email_send", "--tenant", tenant, "--idempotency-key", "k").stdout
    assert again == f"{dead} exists already\n"
    run("jobs", "replay", dead)
    assert statuses(dead) == [JobStatus.PENDING]


@pytest.fixture
def invoices(engine):
    """Makes a table of the application, in which a row refers to a job."""

    def add(job, rule=""):
        with engine.begin() as connection:
            connection.execute(
                text(f"CREATE TABLE invoice (job_id uuid CONSTRAINT invoice_job_fk REFERENCES mdm.job {rule})")
            )
            connection.execute(text("INSERT INTO invoice VALUES (:job)"), {"job": job})

    return add


@pytest.mark.parametrize("rule", ["", "ON DELETE RESTRICT", "DEFERRABLE INITIALLY DEFERRED"])
def test_a_job_that_the_application_refers_to_keeps_all_of_them_and_is_named(run, make, statuses, invoices, rule):
    jobs = make(3, dlq=True)
    invoices(jobs[1], rule)
    for which in (jobs, ["--all"], [jobs[1]]):
        error = run("jobs", "discard", *which, "--yes", code=1).stderr
        assert error.startswith(f"Error: nothing was discarded: job {jobs[1]} is referenced by public.invoice ")
        assert "invoice_job_fk" in error
        assert error.count("\n") == 1
    assert statuses(*jobs) == [JobStatus.DLQ] * 3


def test_a_dry_run_with_ids_finds_a_reference_too(run, make, invoices):
    (job,) = make(dlq=True)
    invoices(job)
    assert "invoice_job_fk" in run("jobs", "discard", job, "--dry-run", code=1).stderr


def test_nothing_matched_is_said_and_no_error_for_a_filter(run, make):
    make(done=True)
    result = run("jobs", "replay", "--status", "done", "--yes")
    assert result.stdout == "nothing to replay: no dlq or failed job matches\n"
    assert run("jobs", "cancel", "--all").stdout == "nothing to cancel: no pending job matches\n"


def test_an_unknown_id_is_an_error(run):
    assert "refused: no job" in run("jobs", "replay", uuid4(), code=1).stderr


def test_a_dry_run_with_a_filter_counts_per_kind_and_status_and_touches_nothing(run, run_json, make, statuses):
    jobs = [*make(2, dlq=True), *make(failed=True, job_kind="reindex"), *make(dlq=True, dedup_key="k")]
    make(dedup_key="k")
    before = statuses(*jobs)
    result = run("jobs", "replay", "--all", "--dry-run")
    assert result.stdout == "would replay 4 jobs (email_send dlq: 3, reindex failed: 1)\n"
    assert result.stderr == "1 of them would be refused: another job has their dedup_key now\n"
    assert run_json("jobs", "replay", "--all", "--dry-run") == {
        "action": "replay",
        "dry_run": True,
        "count": 4,
        "jobs": [
            {"kind": "email_send", "status": "dlq", "count": 3},
            {"kind": "reindex", "status": "failed", "count": 1},
        ],
        "dedup_keys_in_use": 1,
        "refused": [],
    }
    assert run("jobs", "replay", "--all", "--limit", 2, "--dry-run").stdout.startswith("would replay 2 jobs")
    assert statuses(*jobs) == before


def test_a_dry_run_with_ids_tells_what_would_be_refused_and_touches_nothing(run, make, statuses, session):
    (dead,), (done,) = make(dlq=True), make(done=True)
    result = run("jobs", "discard", dead, done, "--dry-run", code=1)
    assert result.stdout == "would discard 1 job (email_send dlq: 1)\n"
    assert result.stderr == f"refused: job {done} is done; only a dlq or failed job can be discarded\n"
    assert statuses(dead, done) == [JobStatus.DLQ, JobStatus.DONE]
    assert session.scalars(select(AuditEntry)).all() == []


def test_json_names_what_was_changed_and_what_was_refused(run, make):
    (dead,), unknown = make(dlq=True), uuid4()
    result = run("jobs", "discard", dead, unknown, "--yes", "--json", code=1)
    assert json.loads(result.stdout) == {
        "action": "discard",
        "dry_run": False,
        "count": 1,
        "ids": [str(dead)],
        "refused": [{"id": str(unknown), "reason": str(JobNotFound(unknown))}],
    }
    assert result.stderr == ""


def test_more_than_one_job_needs_a_yes_where_nobody_can_be_asked(run, make, statuses):
    jobs = make(2, dlq=True)
    for which in (["--status", "dlq"], jobs):
        result = run("jobs", "discard", *which, code=2)
        assert "discard 2 jobs (email_send dlq: 2)?" in result.stderr
        assert "--yes" in result.stderr
    assert statuses(*jobs) == [JobStatus.DLQ] * 2


def test_a_filter_that_matches_one_job_needs_no_yes(run, make, statuses):
    (job,) = make(dlq=True)
    assert run("jobs", "discard", "--status", "dlq").stdout == f"discarded job {job}\n"


@pytest.fixture
def answer(worker_environment):
    """``jobqueue ARGS`` on a terminal where somebody types the answer once the question stands there."""

    def run(args, answer, meanwhile=lambda: None):
        ours, theirs = pty.openpty()
        command = subprocess.Popen(
            [*COMMAND, *args], stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, env=worker_environment, text=True
        )
        with command:
            os.close(theirs)
            question = os.read(ours, 1000).decode()
            meanwhile()
            os.write(ours, answer.encode())
            output, _ = command.communicate(timeout=60)
        os.close(ours)
        return question, output, command.returncode

    return run


def test_more_than_one_job_is_asked_about_on_a_terminal(answer, make, statuses):
    jobs = make(2, dlq=True)
    question, output, code = answer(["jobs", "discard", "--status", "dlq"], "n\n")
    assert question.startswith("discard 2 jobs (email_send dlq: 2)? [y/N]")
    # Some versions of click write a blank to stdout, where the terminal's cursor waits for the answer
    assert (output.strip(), code) == ("", 1)
    assert statuses(*jobs) == [JobStatus.DLQ] * 2
    _, output, code = answer(["jobs", "discard", "--status", "dlq"], "y\n")
    assert (output.strip(), code) == ("discarded 2 jobs", 0)
    assert statuses(*jobs) == [None, None]


def test_no_more_jobs_are_taken_than_were_agreed_to(answer, make, statuses):
    jobs = make(2, dlq=True)
    later = []
    answer(["jobs", "discard", "--status", "dlq"], "y\n", meanwhile=lambda: later.extend(make(3, dlq=True)))
    assert statuses(*jobs, *later) == [None, None] + [JobStatus.DLQ] * 3
