"""A queue of mails on a real database, worked off by real workers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, delete, select, text
from sqlalchemy.orm import Session

from jobqueue import Job, operations
from jobqueue.bundled import email
from jobqueue.bundled.email import Email
from jobqueue.models import EmailLog
from jobqueue.settings import load_settings
from jobqueue.worker import Worker
from tests.support.smtp import Authority, MailServer, ScriptedServer


class Mailroom:
    """Enqueues mails and works them off."""

    def __init__(self, engine: Engine, database_url: str, tenant_id: UUID) -> None:
        self.engine = engine
        self.tenant_id = tenant_id
        self._database_url = database_url

    def post(self, *to: str, **fields: Any) -> UUID:
        """Enqueue a mail; what is not given is made up."""
        fields = {"to": list(to) or ["ada@example.com"], "subject": "Hello", "text": "Good morning."} | fields
        options = {"max_attempts": fields.pop("max_attempts", email.MAX_ATTEMPTS)}
        with Session(self.engine) as session, session.begin():
            return email.email_send.enqueue(session, Email(**fields), tenant_id=self.tenant_id, **options).id

    def work(self, url: str, *, answer_seconds: float = 20, **settings: Any) -> None:
        """Run a worker until nothing is due. Whatever waits for its next attempt is due at once."""
        self.make_due()
        given = load_settings(
            **{
                "database_url": self._database_url,
                "smtp_url": url,
                "smtp_sender": "Shop <shop@sender.example>",
                "smtp_timeout": timedelta(seconds=answer_seconds),
            }
            | settings
        )
        Worker(email.handlers_for(given), given, drain=True).run()

    def make_due(self) -> None:
        with Session(self.engine) as session, session.begin():
            session.execute(text("UPDATE mdm.job SET available_at = now() WHERE status = 'pending'"))

    def purge(self, job_id: UUID) -> None:
        with Session(self.engine) as session, session.begin():
            session.execute(delete(Job).where(Job.id == job_id))

    def job(self, job_id: UUID) -> Job:
        with Session(self.engine, expire_on_commit=False) as session:
            return session.get_one(Job, job_id)

    def log(self, job_id: UUID) -> list[tuple[str, list[str], int | None]]:
        """The rows of ``mdm.email_log``: outcome, recipients, code."""
        return [(row.outcome, row.recipients, row.code) for row in self.rows(job_id)]

    def rows(self, job_id: UUID | None) -> list[EmailLog]:
        with Session(self.engine, expire_on_commit=False) as session:
            query = select(EmailLog).where(EmailLog.job_id.is_not_distinct_from(job_id)).order_by(EmailLog.id)
            return list(session.scalars(query))

    def replay(self, job_id: UUID) -> None:
        with Session(self.engine) as session, session.begin():
            operations.replay(session, job_id, actor="ada")


@pytest.fixture
def mailroom(engine: Engine, database_url: str, tenant_id: UUID) -> Mailroom:
    return Mailroom(engine, database_url, tenant_id)


@pytest.fixture
def server() -> Iterator[MailServer]:
    """A mail server that takes everything but what the test puts into ``refusals``."""
    with MailServer().running() as server:
        yield server


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    """A mail server whose ``script`` the test fills."""
    with ScriptedServer().running() as server:
        yield server


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def plain(server: MailServer | ScriptedServer) -> str:
    """The URL of a server without TLS."""
    return f"smtp+plain://127.0.0.1:{server.port}?local_hostname=client.example"
