"""A mail from the job to the server: what arrives, over which connection, and what is logged."""

from __future__ import annotations

from tests.email.conftest import Mailroom, plain
from tests.support.smtp import MailServer


def test_a_mail_arrives_whole(mailroom: Mailroom, server: MailServer) -> None:
    job_id = mailroom.post("Ada <ada@example.com>", cc="bob@example.com", bcc="eve@example.com", html="<p>Hi</p>")
    mailroom.work(plain(server))
    (mail,) = server.mails
    assert mailroom.job(job_id).status == "done"
    assert mail.recipients == ["ada@example.com", "bob@example.com", "eve@example.com"]
