"""What the demo claims, each held against the database and the mailboxes."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from jobqueue.demo import cast
from jobqueue.demo.ledger import JobFacts, Ledger, Loss
from jobqueue.demo.mailserver import CLOSED, TRY_LATER
from jobqueue.demo.screen import Screen
from jobqueue.demo.shop import RETRY_SECONDS
from jobqueue.states import ENDED, JobStatus

_MAX_WORDS: Final = 300


class Claims:
    """Tells each claim with its figures, and whether it holds."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self.all_hold = True

    def claim(self, text: str, *, holds: bool) -> None:
        self._screen.claim(text, holds=holds)
        self.all_hold = self.all_hold and holds

    def nearly_all_delivered(self, ledger: Ledger) -> None:
        done, dlq = len(ledger.ids(JobStatus.DONE)), len(ledger.ids(JobStatus.DLQ))
        self.claim(
            f"Of {_count(len(ledger.customers), 'order')}, {len(ledger.served)} have their mail delivered. "
            f"{_count(done, 'job')} done, {dlq} in dlq, {len(ledger.jobs) - done - dlq} left behind; "
            f"{_count(ledger.strays, 'mail')} astray.",
            holds=len(ledger.served) == done == cast.ORDERS - 1
            and dlq == 1
            and len(ledger.jobs) == len(ledger.customers) == cast.ORDERS
            and not ledger.strays,
        )

    def rolled_back(self, ledger: Ledger) -> None:
        recipients = {mail.recipient for mail in ledger.mails}
        traces = {
            "a row": cast.ROLLED_BACK in ledger.customers,
            "a job": ledger.has_job_for(cast.ROLLED_BACK),
            "a mail": cast.customer_of(cast.ROLLED_BACK) in recipients,
        }
        found = ", ".join(trace for trace, there in traces.items() if there)
        self.claim(f"Order {cast.ROLLED_BACK}, rolled back, left {found or 'nothing'}.", holds=not found)

    def recovered(self, ledger: Ledger, loss: Loss) -> None:
        finished = [
            job for job in ledger.jobs if job.id in loss.jobs and job.status in ENDED and not job.is_of(loss.pid)
        ]
        self.claim(
            f"The killed worker held {_count(len(loss.jobs), 'job')}. The other one recovered and finished "
            f"{len(finished)} of them.",
            holds=len(finished) == len(loss.jobs) > 0,
        )

    def repeated(self, ledger: Ledger, loss: Loss) -> None:
        """At least once: a repeat is possible where a worker was lost, and nowhere else."""
        repeated = ledger.repeated
        if repeated:
            how = "Each repeat is the same mail" if ledger.repeats_are_identical else "A repeat is NOT the same mail"
            text = (
                f"{_count(len(repeated), 'mail')} came twice: taken by the mail server, and the worker killed before "
                f"it could write that down. {how}, by its Message-ID and to the last byte."
            )
        else:
            text = "No mail came twice: the mail server had taken none of those that the killed worker held."
        self.claim(text, holds=ledger.repeats_are_identical and repeated.keys() <= loss.jobs | ledger.recovered)

    def tried_again(self, ledger: Ledger) -> None:
        customers = {ledger.customers[number] for number in ledger.served}
        served = ledger.put_off & customers
        self.claim(
            f'{_count(len(ledger.put_off), "recipient")} got "{TRY_LATER}" at first. The worker tried again '
            f"{RETRY_SECONDS} s later (a minute or two unless set), and {len(served)} have their mail.",
            holds=ledger.put_off == cast.GREYLISTED == served,
        )

    def refused(self, ledger: Ledger) -> JobFacts | None:
        """The job in dlq, if there is one."""
        job = next((job for job in ledger.jobs if job.status is JobStatus.DLQ), None)
        words = (job.last_error or "no reason") if job else "there is none"
        self.claim(
            f"The job in dlq has the mail server's words: {words[:_MAX_WORDS]}",
            holds=job is not None and CLOSED in words and job.id not in ledger.sent_by,
        )
        return job

    def brought_back(self, ledger: Ledger, job_id: UUID, actors: list[str | None], actor: str) -> None:
        status = next((job.status.value for job in ledger.jobs if job.id == job_id), "gone")
        recipients = [mail.recipient for mail in ledger.sent_by.get(job_id, [])]
        self.claim(
            f"The job is {status}, and {cast.CLOSED} has {_count(len(recipients), 'mail')}. "
            f"The audit log says who replayed it: {', '.join(map(str, actors)) or 'nobody'}.",
            holds=status == JobStatus.DONE and recipients == [cast.CLOSED] and actors == [actor],
        )

    def all_delivered(self, ledger: Ledger) -> None:
        done = len(ledger.ids(JobStatus.DONE))
        self.claim(
            f"Of {_count(len(ledger.customers), 'order')}, {len(ledger.served)} have their mail delivered. "
            f"{_count(done, 'job')} done, {len(ledger.jobs) - done} left behind.",
            holds=len(ledger.customers) == len(ledger.served) == done == len(ledger.jobs) == cast.ORDERS,
        )

    def stopped(self, exit_code: int) -> None:
        self.claim(f"The worker stopped at SIGTERM with exit code {exit_code}.", holds=exit_code == 0)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
