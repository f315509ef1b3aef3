"""The kind ``email_send``: one mail, handed to a mail server.

    handlers.include(email.handlers)
    email.email_send.enqueue(session, Email(to="ada@example.com", subject="Hello", text="..."), tenant_id=tenant)

What the server answers decides about each recipient:

* accepted: the recipient is not tried again, whatever becomes of the others;
* refused for good (5xx): once the others are settled, the job goes to ``dlq`` with the server's words;
* deferred (4xx, a lost connection, a timeout, trouble with login or TLS): tried again, after one minute or two at
  first, as greylisting wants it, and up to an hour later on.

A replay tries everybody again who has not accepted.

When the server's last answer is lost, or the worker dies before the outcome is written, nobody can know whether the
mail was taken (RFC 5321 section 6.1, RFC 1047). It is then sent again, the same byte for byte, Message-ID included;
with ``Email(at_most_once=True)`` the job goes to ``dlq`` as "outcome unknown" instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final, Self

from tenacity import wait_exponential, wait_random_exponential
from tenacity.wait import WaitBaseT

from jobqueue.bundled import mail_log
from jobqueue.bundled.address import Mailbox, parse_mailbox
from jobqueue.bundled.mail import Attachment, Email
from jobqueue.bundled.message import Message, compose
from jobqueue.bundled.smtp import Verdicts, hand_over
from jobqueue.bundled.smtp_connection import Limits
from jobqueue.bundled.smtp_reply import Outcome
from jobqueue.bundled.smtp_server import SmtpServer
from jobqueue.errors import MailError, SettingsError
from jobqueue.handlers import DeadLetter, Handler, Handlers, JobContext
from jobqueue.settings import Settings, load_settings
from jobqueue.states import JobKind

MAX_ATTEMPTS: Final = 10

WAIT: Final = wait_exponential(multiplier=60, max=1800) + wait_random_exponential(multiplier=60, max=1800)
"""1 to 2 minutes, then 2 to 4, 4 to 8, ... and at last 30 to 60: about four hours in all, random by half."""

_SPARE_SECONDS: Final = 5.0  # of an attempt, for writing down how it ended
_MAX_LISTED: Final = 50


@dataclass(frozen=True, slots=True)
class Mailer:
    """The mail server and the sender of the settings."""

    server: SmtpServer
    sender: Mailbox | None
    answer_seconds: float

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """:raises SettingsError: naming the variable that is missing or wrong, without its value."""
        if settings.smtp_url is None:
            raise SettingsError(
                "JOBQUEUE_SMTP_URL is not set; set it to smtp://user:password@host:587 (STARTTLS), smtps://...:465 "
                "(TLS) or smtp+plain://localhost:25"
            )
        return cls(
            SmtpServer.from_url(settings.smtp_url.get_secret_value()),
            _default_sender(settings),
            settings.smtp_timeout.total_seconds(),
        )

    def sender_of(self, email: Email) -> Mailbox:
        """:raises SettingsError: if neither the mail nor the settings name a sender."""
        if email.sender is not None:
            return parse_mailbox(email.sender)
        if self.sender is None:
            raise SettingsError("the mail names no sender, and JOBQUEUE_SMTP_SENDER is not set; set it to an address")
        return self.sender

    def limits(self, job: JobContext) -> Limits:
        """The attempt's time, less what is needed to write down how it ended."""
        if job.deadline is None or job.remaining is None:
            return Limits(self.answer_seconds)
        spare = min(_SPARE_SECONDS, job.remaining.total_seconds() / 10)
        return Limits(self.answer_seconds, job.deadline - spare)


def _default_sender(settings: Settings) -> Mailbox | None:
    if settings.smtp_sender is None:
        return None
    try:
        return parse_mailbox(settings.smtp_sender)
    except ValueError as error:
        raise SettingsError(f"JOBQUEUE_SMTP_SENDER {error}") from None


@cache
def _mailer_of_environment() -> Mailer:
    return Mailer.of(load_settings())


def handlers_for(settings: Settings, *, wait: WaitBaseT = WAIT) -> Handlers:
    """A registry with ``email_send`` for these settings. ``wait``: see :meth:`Handlers.register`.

    :raises SettingsError: naming the variable that is missing or wrong.
    """
    registry = Handlers()
    _register(registry, Mailer.of(settings), wait)
    return registry


def _register(registry: Handlers, mailer: Mailer | None, wait: WaitBaseT = WAIT) -> Handler[Email]:
    @registry.register(JobKind.EMAIL_SEND, max_attempts=MAX_ATTEMPTS, wait=wait)
    def email_send(payload: Email, job: JobContext) -> None:
        try:
            used = mailer or _mailer_of_environment()
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
    earlier = mail_log.earlier_verdicts(job)
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
        and (verdict.outcome is Outcome.REFUSED or (email.at_most_once and verdict.unknown))
    }


def _settled(recipient: str, earlier: Verdicts, lost: Verdicts) -> bool:
    verdict = earlier.get(recipient)
    return recipient in lost or (verdict is not None and verdict.outcome is Outcome.ACCEPTED)


def _sent(email: Email, job: JobContext, mailer: Mailer, message: Message, recipients: list[str]) -> Verdicts:
    def before_data(taken: list[str]) -> None:
        if job.cancelled:
            raise MailError("the attempt was over before the mail was sent")
        if email.at_most_once:
            mail_log.mark_on_its_way(job, message, taken)

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
        if verdict.outcome is Outcome.DEFERRED and recipient not in lost
    }
    rows = mail_log.rows(job, message, verdicts)
    if not (lost or waiting):
        # In the transaction of `done`. Not opened where nothing is left to say, as after a lost outcome
        if rows:
            job.session.add_all(rows)
        return
    mail_log.keep(job, rows)
    if waiting:
        refused = f"; refused for good: {_listed(lost)}" if lost else ""
        raise MailError(f"deferred: {_listed(waiting)}{refused}")
    raise DeadLetter(f"not delivered: {_listed(lost)}")


def _listed(verdicts: Verdicts) -> str:
    return "; ".join(f"{_names(names)}: {verdict.text}" for verdict, names in mail_log.by_verdict(verdicts).items())


def _names(recipients: list[str]) -> str:
    more = f" and {len(recipients) - _MAX_LISTED} more" if len(recipients) > _MAX_LISTED else ""
    return ", ".join(recipients[:_MAX_LISTED]) + more


handlers: Final = Handlers()
"""``email_send`` with the settings of the environment, which are read at the first attempt."""

email_send: Final = _register(handlers, None)
"""The handler itself: ``email.email_send.enqueue(session, Email(...), tenant_id=...)``."""

__all__ = ["Attachment", "Email", "email_send", "handlers", "handlers_for"]
