"""The handler of ``email_send``: how an attempt goes, and what it ends in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tenacity import wait_exponential, wait_random_exponential
from tenacity.wait import WaitBaseT

from jobqueue.bundled.email import log
from jobqueue.bundled.email.address import Mailbox
from jobqueue.bundled.email.exchange import Verdicts, hand_over
from jobqueue.bundled.email.mail import Email
from jobqueue.bundled.email.mailer import Mailer, check_environment, mailer_of_environment
from jobqueue.bundled.email.message import Message, compose
from jobqueue.bundled.email.reply import Delivery
from jobqueue.errors import MailError, SettingsError
from jobqueue.handlers import DeadLetter, Handler, Handlers, JobContext
from jobqueue.settings import Settings
from jobqueue.states import JobKind

MAX_ATTEMPTS: Final = 10

WAIT: Final = wait_exponential(multiplier=60, max=1800) + wait_random_exponential(multiplier=60, max=1800)
"""1 to 2 minutes, then 2 to 4, 4 to 8, ... and at last 30 to 60: about four hours in all, random by half."""

_MAX_LISTED: Final = 50


def handlers_for(settings: Settings, *, wait: WaitBaseT = WAIT) -> Handlers:
    """A registry with ``email_send`` for these settings. ``wait``: see :meth:`Handlers.register`.

    :raises SettingsError: naming the variable that is missing or wrong.
    """
    mailer = Mailer.of(settings)
    registry = Handlers()
    _register(registry, lambda: mailer, wait)
    return registry


def _register(
    registry: Handlers,
    mailer: Callable[[], Mailer],
    wait: WaitBaseT = WAIT,
    check: Callable[[], None] | None = None,
) -> Handler[Email]:
    @registry.register(JobKind.EMAIL_SEND, max_attempts=MAX_ATTEMPTS, wait=wait, check=check)
    def email_send(payload: Email, job: JobContext) -> None:
        try:
            used = mailer()
            sender = used.sender_of(payload)
        except SettingsError as error:
            job.logger.error("no mail can be sent: %s", error)
            raise
        send(payload, job, used, sender)

    return email_send


def send(email: Email, job: JobContext, mailer: Mailer, sender: Mailbox) -> None:
    """One attempt. The exchange with the server comes before the first use of ``job.session``.

    :raises MailError: some recipients were deferred; try again.
    :raises DeadLetter: who has not accepted yet never will.
    """
    message = _composed(email, sender, job)
    earlier = log.earlier_verdicts(job)
    # At attempt 1 this is a replay, or a claim that was given back: everybody who has not accepted gets a new chance
    lost = {} if job.attempt == 1 else _lost(email, message.recipients, earlier)
    wanted = [recipient for recipient in message.recipients if not _settled(recipient, earlier, lost)]
    verdicts = _sent(email, job, mailer, message, wanted) if wanted else {}
    _conclude(email, job, message, verdicts, lost)


def _composed(email: Email, sender: Mailbox, job: JobContext) -> Message:
    try:
        return compose(email, sender, job_id=job.id, created_at=job.created_at)
    except (ValueError, LookupError) as error:
        # Its text may repeat the mail's
        raise DeadLetter(f"the mail cannot be built: {type(error).__name__}") from None


def _lost(email: Email, recipients: list[str], verdicts: Verdicts) -> Verdicts:
    """Those who are not to be tried again although they have not accepted."""
    return {
        recipient: verdict
        for recipient in recipients
        if (verdict := verdicts.get(recipient)) is not None
        and (verdict.delivery is Delivery.REFUSED or (email.at_most_once and verdict.unknown))
    }


def _settled(recipient: str, earlier: Verdicts, lost: Verdicts) -> bool:
    verdict = earlier.get(recipient)
    return recipient in lost or (verdict is not None and verdict.delivery is Delivery.ACCEPTED)


def _sent(email: Email, job: JobContext, mailer: Mailer, message: Message, recipients: list[str]) -> Verdicts:
    def before_data(taken: list[str]) -> None:
        if job.cancelled:
            raise MailError("the attempt was over before the mail was sent")
        if email.at_most_once:
            log.mark_on_its_way(job, message, taken)

    verdicts = hand_over(mailer.server, message, recipients, limits=mailer.limits(job), before_data=before_data)
    for text in sorted({verdict.text for verdict in verdicts.values() if verdict.alarm}):
        job.logger.error("the mail server %s or its settings need attention: %s", mailer.server, text)
    return verdicts


def _conclude(email: Email, job: JobContext, message: Message, verdicts: Verdicts, lost: Verdicts) -> None:
    """Write the verdicts to the log, and end the attempt by them."""
    lost = lost | _lost(email, message.recipients, verdicts)
    waiting = {
        recipient: verdict
        for recipient, verdict in verdicts.items()
        if verdict.delivery is Delivery.DEFERRED and recipient not in lost
    }
    rows = log.rows(job, message, verdicts)
    if not (lost or waiting):
        # In the transaction of `done`. Not opened where nothing is left to say, as after a lost outcome
        if rows:
            job.session.add_all(rows)
        return
    log.keep(job, rows)
    if waiting:
        refused = f"; refused for good: {_listed(lost)}" if lost else ""
        raise MailError(f"deferred: {_listed(waiting)}{refused}")
    raise DeadLetter(f"not delivered: {_listed(lost)}")


def _listed(verdicts: Verdicts) -> str:
    return "; ".join(f"{_names(names)}: {verdict.text}" for verdict, names in log.by_verdict(verdicts).items())


def _names(recipients: list[str]) -> str:
    more = f" and {len(recipients) - _MAX_LISTED} more" if len(recipients) > _MAX_LISTED else ""
    return ", ".join(recipients[:_MAX_LISTED]) + more


handlers: Final = Handlers()
"""``email_send`` with the settings of the environment, which are checked when a worker starts."""

email_send: Final = _register(handlers, mailer_of_environment, check=check_environment)
"""The handler itself: ``email.email_send.enqueue(session, Email(...), tenant_id=...)``."""
