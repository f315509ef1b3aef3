"""Which server mails go to, and whom they come from: what the settings say, read and checked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final, Self

from jobqueue.bundled.email.address import Mailbox, parse_mailbox
from jobqueue.bundled.email.connection import Limits
from jobqueue.bundled.email.mail import Email
from jobqueue.bundled.email.server import SmtpServer
from jobqueue.errors import SettingsError
from jobqueue.handlers import JobContext
from jobqueue.settings import Settings, load_settings

_SPARE_SECONDS: Final = 5.0  # of an attempt, for writing down how it ended


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
def mailer_of_environment() -> Mailer:
    """The mailer of the environment's settings. A success is remembered (reading certificates takes a while).

    :raises SettingsError: as :meth:`Mailer.of`; then the next call reads the environment again.
    """
    return Mailer.of(load_settings())


def check_environment() -> None:
    """Read the environment anew, as a worker does when it starts, so that a fault stops it before any mail does.

    :raises SettingsError: as :meth:`Mailer.of`.
    """
    mailer_of_environment.cache_clear()
    mailer_of_environment()
