"""``jobqueue enqueue``: one job, in a transaction of its own."""

from __future__ import annotations

import getpass
import json
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import func, select

from jobqueue import Job

SECRET = "S3CRET-1"

TYPED = """
from pydantic import BaseModel
from jobqueue import Handlers

handlers = Handlers()

class Letter(BaseModel):
    to: str
    copies: int = 1

@handlers.register("reindex", max_attempts=3)
def send(payload: Letter) -> None: ...
"""


@pytest.fixture
def enqueue(run, tenant_id):
    return lambda *args, **options: run("enqueue", *args, "--tenant", tenant_id, **options)


def test_writes_the_job_and_prints_its_id(enqueue, session, tenant_id):
    job_id, word = enqueue("email_send", '{"to": "ada@example.com"}').stdout.split()
    job = session.get_one(Job, UUID(job_id))
    assert word == "created"
    assert (job.job_kind, job.tenant_id, job.payload) == ("email_send", tenant_id, {"to": "ada@example.com"})
    assert (job.priority, job.max_attempts) == (100, 8)
    assert job.created_by == f"cli:{getpass.getuser()}"


def test_takes_every_option_of_a_job(enqueue, session):
    keys = ("--idempotency-key", "a", "--dedup-key", "b")
    enqueue("reindex", "--priority", -5, "--max-attempts", 2, "--at", "2030-01-31T08:00:00+02:00", *keys)
    job = session.scalars(select(Job)).one()
    assert (job.payload, job.priority, job.max_attempts) == ({}, -5, 2)
    assert (job.idempotency_key, job.dedup_key) == ("a", "b")
    assert job.available_at == datetime(2030, 1, 31, 6, tzinfo=UTC)


def test_a_delay_counts_from_now_by_the_database_s_clock(enqueue, session):
    enqueue("reindex", "--delay", "1h30m")
    job = session.scalars(select(Job)).one()
    assert abs(job.available_at - job.created_at - timedelta(minutes=90)) < timedelta(seconds=5)


def test_reads_the_payload_from_standard_input(enqueue, session):
    enqueue("reindex", "-", stdin='{"to": "Zoë"}')
    assert session.scalars(select(Job.payload)).one() == {"to": "Zoë"}


def test_a_key_that_is_taken_is_no_error_and_names_the_job_that_has_it(enqueue):
    first = json.loads(enqueue("reindex", "--idempotency-key", "a", "--json").stdout)
    second = json.loads(enqueue("reindex", "--idempotency-key", "a", "--json").stdout)
    assert (first["created"], second) == (True, {"id": first["id"], "created": False})
    assert enqueue("reindex", "--idempotency-key", "a").stdout == f"{first['id']} exists already\n"


def test_checks_the_payload_against_the_handler_and_takes_its_max_attempts(enqueue, session, application):
    module = application(TYPED)
    result = enqueue("reindex", f'{{"copies": "{SECRET}"}}', "--handlers", f"{module}:handlers", code=2)
    assert "$.to: Field required; $.copies: " in result.stderr
    assert SECRET not in result.output
    enqueue("reindex", '{"to": "ada"}', "--handlers", f"{module}:handlers")
    job = session.scalars(select(Job)).one()
    assert (job.payload, job.max_attempts) == ({"to": "ada", "copies": 1}, 3)


def test_a_kind_without_a_handler_is_refused_where_handlers_are_given(enqueue, application):
    result = enqueue("email_send", "--handlers", f"{application(TYPED)}:handlers", code=3)
    assert "no handler for email_send (it has reindex)" in result.stderr


def test_a_kind_that_the_database_lacks_names_the_revision_to_write(enqueue):
    assert 'op.add_job_kind("ocr_extract")' in enqueue("ocr_extract", code=3).stderr


def test_a_tenant_without_a_row_is_refused(run, session):
    assert "tenant_id" in run("enqueue", "reindex", "--tenant", uuid4(), code=1).stderr
    assert session.scalars(select(func.count(Job.id))).one() == 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["Reindex"], "lower case"),
        (["reindex", "--priority", "99999"], "priority must be from"),
        (["reindex", "--max-attempts", "0"], "max_attempts must be from"),
        (["reindex", "--idempotency-key", ""], "idempotency_key must have"),
        (["reindex", "--delay", "10"], "write a number and a unit"),
        (["reindex", "--at", "2030-01-31T08:00:00"], "has no time zone"),
        (["reindex", "--at", "tomorrow"], "ISO 8601"),
        (["reindex", "--at", "2030-01-31T08:00Z", "--delay", "1s"], "exclude each other"),
        (["reindex", "--handlers", "jobs.py"], "MODULE:NAME"),
    ],
)
def test_what_cannot_be_stored_is_wrong_usage(enqueue, args, words):
    assert words in enqueue(*args, code=2).stderr


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (f'{{"password": "{SECRET}"', "is no JSON"),
        (f'["{SECRET}"]', "must be a JSON object"),
        (f'{{"{SECRET}": 1, "{SECRET}": 2}}', "the same key twice"),
        (f'{{"a": NaN, "b": "{SECRET}"}}', "$"),
        (f'{{"a": "\\ud800", "b": "{SECRET}"}}', "$"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
@pytest.mark.parametrize("way", ["as an argument", "from standard input"])
def test_a_payload_that_is_none_is_refused_and_never_repeated(enqueue, payload, words, way):
    args, stdin = (("reindex", payload), None) if way == "as an argument" else (("reindex", "-"), payload)
    result = enqueue(*args, stdin=stdin, code=2)
    assert words in result.stderr
    assert SECRET not in result.output


def test_a_payload_that_the_shell_took_apart_is_refused_and_never_repeated(enqueue):
    result = enqueue("reindex", "{}", f"password: {SECRET}", code=2)
    assert "quote the JSON" in result.stderr
    assert SECRET not in result.output
