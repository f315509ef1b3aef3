"""No secret in logs at any level, nor in ``last_error``."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import IntegrityError
from tenacity.wait import wait_base

from jobqueue import Handlers, JobContext, JobStatus
from jobqueue.errors import DatabaseUnavailable
from tests.support.waiting import wait_until
from tests.support.worker import Workers, drain, running
from tests.worker.conftest import Bench

INSERT = "INSERT INTO public.note (text) VALUES (:text)"
PAYLOAD = {"password": "S3CRET-1", "url": "https://user:S3CRET-2@example.com/hook?token=S3CRET-3"}


class Faulty(wait_base):
    """A wait strategy that fails itself, with the job's error as its context."""

    def __call__(self, retry_state: Any) -> float:
        raise ValueError("no idea")


@pytest.fixture
def everything_logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG)
    for name in ("sqlalchemy", "sqlalchemy.engine", "sqlalchemy.pool", "psycopg", "asyncio", "jobqueue"):
        caplog.set_level(logging.DEBUG, name)
    return caplog


def failing() -> Handlers:
    """Handlers that fail in the ways in which secrets come into error texts."""
    handlers = Handlers()

    @handlers.register("reindex", wait=Faulty())
    def plain(payload: dict[str, Any], job: JobContext) -> None:
        job.logger.info("started")
        how = payload["how"]
        parameters = {"text": payload["password"]}
        if how == "integrity error":
            job.session.execute(text(INSERT), parameters)
        if how == "swallowed at the flush":
            try:
                job.session.execute(text(INSERT), parameters)
            except IntegrityError as error:
                raise RuntimeError(f"import failed: {error}") from error
        if how == "an engine of its own":
            engine = create_engine(payload["database"])
            try:
                with engine.begin() as connection:
                    connection.execute(text(INSERT), parameters)
            except IntegrityError as error:
                raise RuntimeError(f"import failed: {error}") from error
            finally:
                engine.dispose()
        if how == "a URL":
            raise ConnectionError(f"POST {payload['url']} answered 500")
        if how == "a DSN":
            raise ConnectionError("connection failed: host=db user=ada password=S3CRET-4 dbname=app")
        if how == "no text":
            raise SystemExit

    @handlers.register("bulk_import")
    async def asynchronous(payload: dict[str, Any], job: JobContext) -> None:
        async def background() -> None:
            async with job.async_session.begin_nested():
                await job.async_session.execute(text(INSERT), {"text": payload["password"]})

        task = asyncio.create_task(background())
        await asyncio.wait([task])

    return handlers


HOW = ["integrity error", "swallowed at the flush", "an engine of its own", "a URL", "a DSN", "no text"]


def test_no_secret_in_the_logs_of_failing_handlers_nor_in_last_error(
    bench: Bench, everything_logged: pytest.LogCaptureFixture
) -> None:
    everything_logged.set_level(logging.WARNING, "sqlalchemy.engine.Engine")  # the test's own engines
    bench.create_notes()
    bench.execute("INSERT INTO public.note (text) VALUES ('S3CRET-1')")
    everything_logged.clear()
    jobs = [bench.enqueue(PAYLOAD | {"how": how, "database": bench.url}, max_attempts=1) for how in HOW]
    bench.enqueue(PAYLOAD, kind="bulk_import", max_attempts=1)
    bench.enqueue({"password": ["S3CRET-5"]}, kind="virus_scan")
    everything_logged.set_level(logging.DEBUG, "sqlalchemy.engine.Engine")

    drain(failing(), bench.url)

    records = [r for r in everything_logged.records if r.name != "sqlalchemy.engine.Engine"]
    logged = "\n".join(f"{r.name} {r.getMessage()} {r.exc_text or ''}" for r in records)
    assert "jobqueue" in {record.name.split(".")[0] for record in records}
    assert "sqlalchemy.engine.Engine.jobqueue" in {record.name for record in records}
    assert "S3CRET" not in logged
    for job, how in zip(jobs, HOW, strict=True):
        error = str(bench.job(job).last_error)
        assert error, how
        assert "S3CRET" not in error, how


def test_no_secret_of_a_flush_that_failed_and_was_swallowed(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    from tests.worker.test_job_session import Note

    bench.create_notes()
    bench.execute("INSERT INTO public.note (text) VALUES ('S3CRET-1')")
    handlers = Handlers()

    @handlers.register("reindex")
    def run(payload: dict[str, Any], job: JobContext) -> None:
        job.session.add(Note(text=payload["password"]))
        try:
            job.session.flush()
        except IntegrityError:
            job.session.execute(text("SELECT 1"))  # and goes on

    job_id = bench.enqueue(PAYLOAD, max_attempts=1)
    bench.drain(handlers)
    error = str(bench.job(job_id).last_error)
    assert "rolled back due to a previous exception" in error
    assert "S3CRET" not in error + caplog.text


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:S3CRET-1@no-such-host.invalid/db",
        "postgresql://127.0.0.1:1/db?user=ada&password=S3CRET-1",
        "postgresql://ada:S3CRET-1@127.0.0.1:1/db?password=S3CRET-2&sslpassword=S3CRET-3",
    ],
)
def test_no_secret_of_the_database_url(
    database_url: str, everything_logged: pytest.LogCaptureFixture, url: str
) -> None:
    with pytest.raises(DatabaseUnavailable) as caught:
        drain(failing(), url)
    assert "S3CRET" not in str(caught.value)
    assert "S3CRET" not in everything_logged.text


def test_no_secret_when_the_database_goes_away_and_a_worker_process_logs_everything(
    bench: Bench, workers: Workers
) -> None:
    workers.write_app(
        "import logging\n"
        "logging.basicConfig(level=logging.DEBUG)\n"
        "from jobqueue import Handlers\n"
        "handlers = Handlers()\n"
        "@handlers.register('reindex')\n"
        "def run(payload):\n"
        "    raise ValueError(payload['url'])\n"
    )
    job_id = bench.enqueue(PAYLOAD, max_attempts=1)
    url = make_url(bench.url).update_query_dict({"password": "S3CRET-4"})
    worker = workers.start("--log-level", "debug", database_url=url.render_as_string(hide_password=False))
    bench.wait_for(job_id, JobStatus.DLQ)
    bench.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name LIKE 'jobqueue%'"
    )
    bench.wait_for(bench.enqueue(PAYLOAD, max_attempts=1), JobStatus.DLQ)
    worker.terminate()
    assert worker.wait() == 0, worker.log
    assert "ValueError: https://***@example.com/hook?***" in worker.log
    assert "S3CRET" not in worker.log


def test_a_log_of_the_handler_names_the_job(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "jobqueue")
    handlers = Handlers()

    @handlers.register("reindex")
    def run(payload: dict[str, Any], job: JobContext) -> None:
        job.logger.info("half way")

    job_id = bench.enqueue()
    with running(handlers, bench.url):
        wait_until(lambda: "half way" in caplog.text)
    (record,) = [record for record in caplog.records if record.getMessage() == "half way"]
    assert (record.job_id, record.job_kind, record.attempt) == (job_id, "reindex", 1)  # type: ignore[attr-defined]
