"""Which jobs a JobFilter means."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobqueue import JobFilter, discard, replay
from jobqueue.errors import InvalidJob
from jobqueue.states import JobStatus
from tests.repository.steps import change, statuses
from tests.support.factories import new_job, new_tenant

TENANT = UUID("0193b3f0-0000-7000-8000-000000000001")


def named(session: Session) -> dict[str, Any]:
    """One dead or failed job for each thing that a filter may ask for."""
    new_tenant(id=TENANT)
    jobs = {
        "plain": new_job(dlq=True),
        "failed": new_job(failed=True),
        "reindex": new_job(dlq=True, job_kind="reindex"),
        "tenant": new_job(dlq=True, tenant_id=TENANT),
        "old": new_job(dlq=True),
        "percent": new_job(dlq=True, last_error="Ünable: 100%_done\\ 'quoted'"),
        "textless": new_job(dlq=True, last_error=None),
    }
    change(session, jobs["old"].id, created_at=text("now() - interval '2 days'"))
    for status in ("done", "running"):
        new_job(**{status: True})
    new_job()
    return {name: job.id for name, job in jobs.items()}


EVERYTHING = {"plain", "failed", "reindex", "tenant", "old", "percent", "textless"}
REFUSED_CONNECTION = EVERYTHING - {"failed", "percent", "textless"}

FILTERS: dict[str, tuple[JobFilter, set[str]]] = {
    "nothing": (JobFilter(), EVERYTHING),
    "statuses": (JobFilter(statuses=[JobStatus.FAILED]), {"failed"}),
    "statuses as text": (JobFilter(statuses=["failed", "done"]), {"failed"}),  # type: ignore[list-item]
    "no status": (JobFilter(statuses=[]), set()),
    "a status that does not fit": (JobFilter(statuses=[JobStatus.RUNNING]), set()),
    "kinds": (JobFilter(kinds={"reindex", "virus_scan"}), {"reindex"}),
    "an unknown kind": (JobFilter(kinds=["no_such_kind"]), set()),
    "tenants": (JobFilter(tenants=[TENANT]), {"tenant"}),
    "age": (JobFilter(older_than=timedelta(days=1)), {"old"}),
    "more than any age": (JobFilter(older_than=timedelta(days=3)), set()),
    "error": (JobFilter(error="MAIL.example"), REFUSED_CONNECTION),
    "error, beyond ASCII": (JobFilter(error="ünable"), {"percent"}),
    "error, wildcards are letters": (JobFilter(error="0%_d"), {"percent"}),
    "error, a lone wildcard": (JobFilter(error="%"), {"percent"}),
    "error, backslash": (JobFilter(error="done\\"), {"percent"}),
    "error, quote": (JobFilter(error="'QUOTED'"), {"percent"}),
    "limit": (JobFilter(limit=2), {"plain", "failed"}),
    "limit of none": (JobFilter(limit=0), set()),
    "together": (JobFilter(statuses=["dlq"], kinds=["email_send"], error="refused", limit=2), {"plain", "tenant"}),  # type: ignore[list-item]
}


@pytest.mark.parametrize(("which", "names"), FILTERS.values(), ids=FILTERS.keys())
def test_a_filter_takes_what_matches_in_every_field(session: Session, which: JobFilter, names: set[str]) -> None:
    jobs = named(session)
    expected = {jobs[name] for name in names}
    before = statuses(session)
    with session.begin_nested() as savepoint:
        assert set(replay(session, which, actor="ada").ids) == expected
        savepoint.rollback()
    assert statuses(session) == before
    changed = discard(session, which, actor="ada")
    assert set(changed.ids) == expected
    assert changed.refused == {}
    assert before.keys() - statuses(session).keys() == expected


@pytest.mark.parametrize("error", ["", "a\x00b", "\ud800"])
def test_an_error_text_that_cannot_be_asked_for_is_refused(session: Session, error: str) -> None:
    with pytest.raises(InvalidJob):
        discard(session, JobFilter(error=error), actor="ada")
