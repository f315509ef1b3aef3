"""Each recipient has an outcome of their own: nobody gets the mail twice because of another."""

from __future__ import annotations

from tests.email.conftest import Mailroom, plain
from tests.support.smtp import CLOSE, MailServer, ScriptedServer

ADA, BOB, EVE = "ada@example.com", "bob@example.com", "eve@example.com"


def test_a_retry_goes_only_to_those_that_were_deferred(mailroom: Mailroom, server: MailServer) -> None:
    server.refusals = {BOB: "450 4.2.1 Greylisted"}
    job_id = mailroom.post(ADA, BOB)
    mailroom.work(plain(server))
    assert mailroom.job(job_id).status == "pending"
    server.refusals = {}
    mailroom.work(plain(server))
    assert mailroom.job(job_id).status == "done"
    assert [mail.recipients for mail in server.mails] == [[ADA], [BOB]]
    assert server.mails[0].data == server.mails[1].data
    assert mailroom.log(job_id) == [("deferred", [BOB], 450), ("accepted", [ADA], 250), ("accepted", [BOB], 250)]


def test_the_others_get_the_mail_before_it_goes_to_dlq(mailroom: Mailroom, server: MailServer) -> None:
    server.refusals = {EVE: "550 5.1.1 No such user"}
    job_id = mailroom.post(ADA, BOB, EVE)
    mailroom.work(plain(server))
    job = mailroom.job(job_id)
    assert (job.status, job.attempts) == ("dlq", 1)
    assert job.last_error == f"not delivered: {EVE}: 550 5.1.1 No such user"
    assert [mail.recipients for mail in server.mails] == [[ADA, BOB]]


def test_deferred_ones_are_settled_before_refused_ones_are_told(mailroom: Mailroom, server: MailServer) -> None:
    server.refusals = {BOB: "450 4.2.1 Greylisted", EVE: "550 5.1.1 No such user"}
    job_id = mailroom.post(ADA, BOB, EVE)
    mailroom.work(plain(server))
    job = mailroom.job(job_id)
    assert job.status == "pending"
    assert f"deferred: {BOB}: 450 4.2.1 Greylisted; refused for good: {EVE}: 550 5.1.1" in str(job.last_error)

    server.refusals = {}
    mailroom.work(plain(server))
    job = mailroom.job(job_id)
    assert (job.status, job.last_error) == ("dlq", f"not delivered: {EVE}: 550 5.1.1 No such user")
    assert [mail.recipients for mail in server.mails] == [[ADA], [BOB]]


def test_a_replay_tries_those_again_who_were_refused_and_only_those(mailroom: Mailroom, server: MailServer) -> None:
    server.refusals = {EVE: "550 5.1.1 No such user"}
    job_id = mailroom.post(ADA, EVE)
    mailroom.work(plain(server))
    server.refusals = {}
    mailroom.replay(job_id)
    mailroom.work(plain(server))
    assert mailroom.job(job_id).status == "done"
    assert [mail.recipients for mail in server.mails] == [[ADA], [EVE]]


def test_all_refused_for_good_is_one_dead_letter(mailroom: Mailroom, server: MailServer) -> None:
    server.refusals = {ADA: "550 5.1.1 No such user", BOB: "550 5.1.1 No such user"}
    job_id = mailroom.post(ADA, BOB)
    mailroom.work(plain(server))
    job = mailroom.job(job_id)
    assert (job.status, job.last_error) == ("dlq", f"not delivered: {ADA}, {BOB}: 550 5.1.1 No such user")
    assert server.mails == []


def test_a_server_with_a_limit_gets_the_others_in_the_next_transaction(
    mailroom: Mailroom, scripted: ScriptedServer
) -> None:
    scripted.script |= {
        f"RCPT {BOB}": ["452 4.5.3 Too many recipients", "250 OK"],
        f"RCPT {EVE}": ["552 Too many recipients", "552 Too many recipients", "250 OK"],
    }
    job_id = mailroom.post(ADA, BOB, EVE)
    mailroom.work(plain(scripted))
    job = mailroom.job(job_id)
    assert (job.status, job.attempts) == ("done", 1)
    assert [mail.recipients for mail in scripted.mails] == [[ADA], [BOB], [EVE]]
    assert scripted.connections == 1


def test_a_connection_lost_in_the_second_transaction_leaves_the_first_as_it_is(
    mailroom: Mailroom, scripted: ScriptedServer
) -> None:
    scripted.script |= {f"RCPT {BOB}": ["452 4.5.3 Too many recipients", CLOSE, "250 OK"]}
    job_id = mailroom.post(ADA, BOB)
    mailroom.work(plain(scripted))
    assert mailroom.job(job_id).status == "pending"
    mailroom.work(plain(scripted))
    assert mailroom.job(job_id).status == "done"
    assert [mail.recipients for mail in scripted.mails] == [[ADA], [BOB]]


def test_a_refusal_by_the_whole_server_spares_nobody_twice(mailroom: Mailroom, scripted: ScriptedServer) -> None:
    """421 to the second recipient: the server hangs up, and the first has no mail yet."""
    scripted.script[f"RCPT {BOB}"] = ["421 4.3.2 Shutting down", "250 OK"]
    job_id = mailroom.post(ADA, BOB)
    mailroom.work(plain(scripted))
    assert scripted.mails == []
    mailroom.work(plain(scripted))
    assert [mail.recipients for mail in scripted.mails] == [[ADA, BOB]]
    assert mailroom.job(job_id).status == "done"
