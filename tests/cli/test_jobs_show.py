"""``jobqueue jobs show``: all that is known of one job."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest
from sqlalchemy import text

from jobqueue import SYSTEM_TENANT_ID, discard, replay
from jobqueue.models import EmailLog
from tests.support.factories import WORKER, JobFactory

SECRET = "S3CRET-1"


def mail(job, **values):
    given = {"outcome": "deferred", "code": 451, "reply": "try later", "sender": "us@example.com"}
    return EmailLog(
        job_id=job.id,
        tenant_id=job.tenant_id,
        message_id="<1@example.com>",
        recipients=["ada@example.com"],
        **given | values,
    )


def test_shows_the_row_its_audit_entries_and_its_mails_in_order(run, session):
    job = JobFactory(dlq=True, last_error="SMTPDataError: 451\n  smtp.py:25 in data", payload={"password": SECRET})
    session.add(mail(job))
    session.flush()
    session.add(mail(job, outcome="accepted", code=250, reply="ok"))
    replay(session, job.id, actor="ada")
    session.commit()
    shown = run("jobs", "show", job.id).stdout
    for words in (
        f"id               {job.id}\n",
        "status           pending\n",
        "last_error       SMTPDataError: 451\n                   smtp.py:25 in data\n",
        "payload          (not shown; --payload shows it)\n",
        "audit log, 1 of 1\n",
        "action   replay\nactor    ada\n",
        "mails, 2 of 2\n",
        'recipients  ["ada@example.com"]\n',
    ):
        assert words in shown
    assert shown.index("451\nreply") < shown.index("250\nreply")
    assert SECRET not in shown


def test_shows_the_payload_only_when_asked(run, run_json, session):
    job = JobFactory(running=True, payload={"password": SECRET})
    session.commit()
    assert SECRET not in run("jobs", "show", job.id, "--json").output
    assert f'"{SECRET}"' in run("jobs", "show", job.id, "--payload").stdout
    document = run_json("jobs", "show", job.id, "--payload")
    assert document["job"]["payload"] == {"password": SECRET}
    assert document["job"]["claimed_by"] == WORKER
    assert (document["audit"], document["emails"]) == ([], [])


UNREADABLE = {
    "a number of 5,000 digits": """('{"n": ' || repeat('9', 5000) || '}')::jsonb""",
    "5,000 levels": """('{"n": ' || repeat('[', 5000) || repeat(']', 5000) || '}')::jsonb""",
}


@pytest.mark.parametrize("stored", UNREADABLE.values(), ids=UNREADABLE)
def test_a_payload_that_python_cannot_read_is_shown_as_its_text(run, session, stored):
    job = JobFactory().id
    session.flush()
    session.execute(text(f"UPDATE mdm.job SET payload = {stored}"))
    session.commit()
    result = run("jobs", "show", job, "--payload")
    assert 'payload          {"n": ' in result.stdout
    assert result.stderr == "the payload is shown as its text: Python cannot read it\n"
    shown = json.loads(run("jobs", "show", job, "--payload", "--json").stdout)["job"]["payload"]
    assert shown.startswith('{"n": ')
    assert "not shown" in run("jobs", "show", job).stdout


def test_a_payload_that_python_can_read_but_not_write_is_shown_as_its_text(run, session):
    job = JobFactory().id
    session.flush()
    for depth in range(100, 1500, 100):
        session.execute(
            text("UPDATE mdm.job SET payload = ('{\"n\": ' || repeat('[', :n) || repeat(']', :n) || '}')::jsonb"),
            {"n": depth},
        )
        session.commit()
        for args in ([], ["--json"]):
            assert '"n": [' in run("jobs", "show", job, "--payload", *args).stdout.replace("\\", "")


def test_of_a_job_that_is_gone_it_shows_what_the_audit_log_kept(run, session):
    job_id = JobFactory(dlq=True).id
    discard(session, job_id, actor="ada")
    session.commit()
    result = run("jobs", "show", job_id, "--json", code=1)
    document = json.loads(result.stdout)
    assert document["job"] is None
    assert [(entry["action"], entry["actor"]) for entry in document["audit"]] == [("discard", "ada")]
    assert f"no job {job_id}" in result.stderr


def test_an_unknown_id_is_told(run):
    result = run("jobs", "show", uuid4(), code=1)
    assert (result.stdout, result.stderr.count("\n")) == ("", 1)


def test_a_value_cannot_move_the_cursor(run, session):
    job = JobFactory(tenant_id=SYSTEM_TENANT_ID, created_by="ada\x1b[2J", idempotency_key="a\rb")
    session.commit()
    shown = run("jobs", "show", job.id).stdout
    assert "ada\\x1b[2J\n" in shown
    assert "a\\rb\n" in shown
