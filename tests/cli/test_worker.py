"""``jobqueue worker``: from the name of a registry to a running worker."""

from __future__ import annotations

import logging

import pytest

from jobqueue import Job, JobStatus
from jobqueue.cli.worker import configure_logging
from tests.support.factories import JobFactory, TenantFactory

SECRET = "S3CRET-1"

HANDLERS = """
from jobqueue import Handlers

handlers = Handlers()
empty = Handlers()
wrong = {}

class Shop:
    handlers = handlers

@handlers.register("reindex")
def reindex(payload: dict): ...

@handlers.register("bulk_import")
async def bulk_import(payload: dict): ...
"""


@pytest.fixture
def jobs_module(application):
    return application(HANDLERS)


@pytest.fixture
def statuses(session):
    def read(*jobs):
        session.expire_all()
        return [session.get_one(Job, job).status for job in jobs]

    return read


def test_a_process_drains_the_queue_with_handlers_from_the_current_directory(process, jobs_module, session, statuses):
    jobs = [JobFactory(job_kind=kind).id for kind in ("reindex", "bulk_import", "email_send")]
    session.commit()
    result = process("worker", f"{jobs_module}:handlers", "--drain", "--concurrency", 2)
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""
    assert " INFO jobqueue.worker: worker " in result.stderr
    assert statuses(*jobs) == [JobStatus.DONE, JobStatus.DONE, JobStatus.PENDING]


def test_kinds_and_tenants_limit_what_it_claims(process, jobs_module, session, statuses):
    tenant = TenantFactory().id
    wanted = JobFactory(job_kind="reindex", tenant_id=tenant).id
    others = JobFactory(job_kind="bulk_import", tenant_id=tenant).id, JobFactory(job_kind="reindex").id
    session.commit()
    limits = ["--kinds", "reindex", "--tenant", tenant]
    result = process("worker", f"{jobs_module}:Shop.handlers", "--drain", *limits, "--log-level", "error")
    assert (result.returncode, result.stderr) == (0, "")
    assert statuses(wanted, *others) == [JobStatus.DONE, JobStatus.PENDING, JobStatus.PENDING]


def test_a_kind_without_a_handler_is_an_error(run, jobs_module):
    for kinds in (["--kinds", "reindex,email_send"], ["--kinds", "reindex", "--kinds", "email_send"]):
        error = run("worker", f"{jobs_module}:handlers", *kinds, code=3).stderr
        assert "no handler for email_send (it has bulk_import, reindex)" in error


def test_a_kind_that_the_database_lacks_stops_the_start_with_the_revision_to_write(run, application):
    module = application(HANDLERS.replace('"reindex"', '"ocr_extract"'))
    error = run("worker", f"{module}:handlers", "--drain", code=3).stderr
    assert 'op.add_job_kind("ocr_extract")' in error


def test_a_schema_that_does_not_fit_stops_the_start_with_the_command_that_mends_it(
    run_anywhere, empty_database_url, jobs_module
):
    result = run_anywhere("worker", f"{jobs_module}:handlers", "--drain", database=empty_database_url, code=3)
    assert "`jobqueue db upgrade`" in result.stderr


def test_a_missing_module_is_told_with_the_place_that_was_searched(run, jobs_module, tmp_path):
    error = run("worker", "no_such_module.jobs:handlers", code=3).stderr
    assert f"there is no module 'no_such_module', neither in {tmp_path} nor among the installed packages" in error
    assert f"there is no module '{jobs_module}.jobs'" in run("worker", f"{jobs_module}.jobs:handlers", code=3).stderr


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import no_such_dependency", "ModuleNotFoundError: No module named 'no_such_dependency'"),
        ("x = 1\nraise ValueError('postgresql://ada:S3CRET-1@db/shop')", "ValueError: postgresql://***@db/shop"),
        ("raise SystemExit('not today')", "SystemExit: not today"),
        ("def broken(:\n  pass", "SyntaxError: invalid syntax"),
    ],
)
def test_an_import_that_raises_is_told_with_its_place_in_one_line(run, application, source, words):
    module = application(source)
    result = run("worker", f"{module}:handlers", code=3)
    assert f"importing '{module}' failed at " in result.stderr
    assert f"{module}.py:{2 if 'x = 1' in source else 1}: " in result.stderr
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert "S3CRET" not in result.output


def test_a_name_that_is_no_registry_is_told_with_those_that_are(run, jobs_module):
    hint = f"did you mean {jobs_module}:handlers or {jobs_module}:empty?"
    missing = run("worker", f"{jobs_module}:handler", code=3).stderr
    assert f"the module '{jobs_module}' has no 'handler'; {hint}" in missing
    assert (
        f"is of type dict, not a jobqueue.Handlers registry; {hint}"
        in run("worker", f"{jobs_module}:wrong", code=3).stderr
    )


def test_an_empty_registry_is_an_error(run, jobs_module):
    assert "has no handlers (it is empty)" in run("worker", f"{jobs_module}:empty", code=3).stderr


def test_a_module_without_any_registry_is_told_how_to_make_one(run, application):
    assert "define `handlers = jobqueue.Handlers()`" in run("worker", f"{application('')}:handlers", code=3).stderr


@pytest.mark.parametrize("args", [["jobs.py"], ["app:handlers", "--concurrency", "0"], ["app:h", "--kinds", "a,,b"]])
def test_wrong_usage_is_told_before_anything_is_imported(run, args):
    run("worker", *args, code=2)


def test_logging_that_the_application_configured_is_left_alone(monkeypatch):
    mine = logging.NullHandler()
    root, ours = logging.getLogger(), logging.getLogger("jobqueue")
    monkeypatch.setattr(root, "handlers", [mine])
    monkeypatch.setattr(ours, "level", logging.NOTSET)
    configure_logging(None)
    assert (root.handlers, ours.level) == ([mine], logging.NOTSET)
    configure_logging("debug")
    assert (root.handlers, ours.level) == ([mine], logging.DEBUG)
    ours.setLevel(logging.NOTSET)


LOGGING = """
import logging
from jobqueue import Handlers

handlers = Handlers()

@handlers.register("reindex")
def reindex(payload: dict, job):
    job.logger.info("half done")
    try:
        raise ValueError("no route")
    except ValueError:
        job.logger.exception("gone wrong")
    logging.getLogger("shop").info("imported", extra={"job_id": 17})
    logging.getLogger("shop").info("plain")
"""


def test_what_a_handler_logs_names_its_job(process, application, session):
    module = application(LOGGING)
    job = JobFactory(job_kind="reindex").id
    session.commit()
    lines = process("worker", f"{module}:handlers", "--drain").stderr.splitlines()
    told = [line.partition(": ")[2] for line in lines]
    assert f"half done [job {job} reindex, attempt 1]" in told
    assert lines[told.index(f"gone wrong [job {job} reindex, attempt 1]") + 1].startswith("Traceback")
    assert "imported [job 17]" in told
    assert "plain" in told


LEAKING = """
from jobqueue import Handlers
from sqlalchemy import text

handlers = Handlers()

@handlers.register("reindex")
def reindex(payload: dict, job):
    # PostgreSQL answers with the whole row
    job.session.execute(text("INSERT INTO mdm.tenant (id, name) VALUES (NULL, :name)"), {"name": payload["password"]})

@handlers.register("bulk_import")
def bulk_import(payload: dict):
    raise ConnectionError("postgresql://ada:" + payload["password"] + "@db/shop?token=" + payload["password"])
"""


def test_nothing_of_a_payload_is_ever_shown_unasked(process, run, application, session):
    module = application(LEAKING)
    jobs = [JobFactory(job_kind=kind, payload={"password": SECRET}).id for kind in ("bulk_import", "reindex")]
    session.commit()
    logs = process("worker", f"{module}:handlers", "--drain", "--log-level", "debug")
    assert (logs.returncode, SECRET in logs.stdout + logs.stderr) == (0, False)
    errors = run("jobs", "list").stdout
    assert "ConnectionError" in errors
    assert "null value in column" in errors
    shown = [errors, run("jobs", "list", "--json").output, run("stats", "--json").output]
    shown += [run("jobs", "show", job, *args).output for job in jobs for args in ([], ["--json"])]
    assert not any(SECRET in text for text in shown)
    assert SECRET in run("jobs", "show", jobs[0], "--payload").stdout
