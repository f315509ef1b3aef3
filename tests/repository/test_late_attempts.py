"""An attempt whose claim was taken over changes nothing, whatever it tries, whoever holds the claim now."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy.orm import Session

from jobqueue import JobRepository, cancel, replay
from jobqueue.models.job import JOB
from jobqueue.repository import Outcome, Token
from jobqueue.states import JobStatus, Transition
from tests.repository.steps import MINUTE, OTHER_WORKER, WORKER, audit, change, claim, end, go_stale, row
from tests.support.factories import new_job

LateMove = Callable[[Session, Token], bool]


def _ending(verb: Transition) -> LateMove:
    def move(session: Session, token: Token) -> bool:
        outcome = Outcome(token, verb, "late", MINUTE, frozenset(JobStatus))
        return JobRepository(session).finish([outcome]) != []

    return move


def _renews(session: Session, token: Token) -> bool:
    renewal = JobRepository(session).renew([token])
    return renewal.renewed != frozenset() or renewal.lost != {token.id}


MOVES: dict[str, LateMove] = {
    **{
        verb.value: _ending(verb)
        for verb in ("done", "retry", "snooze", "failed", "dlq")
        for verb in [Transition(verb)]
    },
    "renew": _renews,
    "release": lambda session, token: JobRepository(session).release([token]) != [],
}
every_move = pytest.mark.parametrize("move", MOVES.values(), ids=MOVES.keys())


def lose_the_claim(session: Session) -> Token:
    """A job whose first attempt was given up for lost; its token."""
    job = new_job()
    token = claim(session).token
    go_stale(session, job.id)
    JobRepository(session).recover_stale(MINUTE)
    return token


def changes_nothing(session: Session, move: LateMove, late: Token) -> None:
    before, entries = row(session, late.id), audit(session)
    assert not move(session, late)
    assert row(session, late.id) == before
    assert audit(session) == entries


@every_move
@pytest.mark.parametrize("worker", [OTHER_WORKER, WORKER], ids=["another worker", "the same worker"])
def test_after_the_job_was_claimed_anew(session: Session, move: LateMove, worker: str) -> None:
    late = lose_the_claim(session)
    held = claim(session, worker).token
    changes_nothing(session, move, late)
    assert end(session, held, Transition.DONE) is JobStatus.DONE


@every_move
def test_after_the_same_worker_claimed_anew_and_claimed_at_is_equal(session: Session, move: LateMove) -> None:
    late = lose_the_claim(session)
    held = claim(session).token
    change(session, late.id, claimed_at=late.started_at)
    changes_nothing(session, move, late)
    assert held.started_at > late.started_at


@every_move
def test_while_the_recovered_job_waits(session: Session, move: LateMove) -> None:
    late = lose_the_claim(session)
    assert row(session, late.id)["claimed_by"] is None
    changes_nothing(session, move, late)


@every_move
@pytest.mark.parametrize("verb", [Transition.DONE, Transition.FAILED, Transition.DLQ])
def test_after_the_job_ended(session: Session, move: LateMove, verb: Transition) -> None:
    new_job()
    token = claim(session).token
    end(session, token, verb)
    changes_nothing(session, move, token)


@every_move
def test_after_the_job_was_cancelled(session: Session, move: LateMove) -> None:
    late = lose_the_claim(session)
    cancel(session, late.id, actor="ada")
    changes_nothing(session, move, late)


@every_move
def test_after_the_job_was_replayed_and_claimed_with_the_same_attempt_number(session: Session, move: LateMove) -> None:
    new_job()
    late = claim(session).token
    end(session, late, Transition.DLQ)
    replay(session, late.id, actor="ada")
    again = claim(session)
    assert again.attempt == 1
    changes_nothing(session, move, late)


@every_move
def test_after_the_job_was_deleted(session: Session, move: LateMove) -> None:
    late = lose_the_claim(session)
    session.execute(JOB.delete())
    assert not move(session, late)


def test_a_token_of_another_worker_opens_nothing(session: Session, repository: JobRepository) -> None:
    new_job()
    token = claim(session).token
    forged = Token(token.id, OTHER_WORKER, token.started_at)
    assert end(session, forged, Transition.DONE) is None
    assert repository.release([forged]) == []
    assert repository.renew([forged]).lost == {token.id}


def test_in_one_batch_the_late_attempt_does_not_speak_for_the_newer(
    session: Session, repository: JobRepository
) -> None:
    late = lose_the_claim(session)
    held = claim(session).token
    audited = Outcome(held, Transition.DLQ, "of the attempt that holds the claim", audit=frozenset({JobStatus.DLQ}))
    dropped = Outcome(late, Transition.FAILED, "late", audit=frozenset())
    for outcomes in ([audited, dropped], [dropped, audited]):
        with session.begin_nested() as savepoint:
            assert [ended.status for ended in repository.finish(outcomes)] == [JobStatus.DLQ]
            assert row(session, late.id)["last_error"] == audited.error
            assert audit(session) == [("job_dlq", late.id, WORKER)]
            savepoint.rollback()
