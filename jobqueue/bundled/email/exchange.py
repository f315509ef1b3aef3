"""Handing one mail to a mail server: a verdict for every recipient, whatever happens on the way."""

from __future__ import annotations

import base64
import smtplib
import ssl
from collections.abc import Callable, Sequence
from typing import Final

from jobqueue.bundled.email.connection import Connection, Limits
from jobqueue.bundled.email.message import Message
from jobqueue.bundled.email.reply import Delivery, Reply, Stage, Verdict, judge, trouble, unknown
from jobqueue.bundled.email.server import Security, SmtpServer
from jobqueue.errors import MailError

Verdicts = dict[str, Verdict]
"""By recipient, as in the envelope."""

_NO_SMTPUTF8: Final = Verdict(
    Delivery.REFUSED,
    "an address has letters beyond ASCII before the '@', and the mail server does not offer SMTPUTF8 (RFC 6531)",
)


class _Settled(Exception):
    """The exchange ends early: one verdict for every recipient that has none yet."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        super().__init__(verdict.text)


def hand_over(
    server: SmtpServer,
    message: Message,
    recipients: Sequence[str],
    *,
    limits: Limits,
    before_data: Callable[[list[str]], None],
) -> Verdicts:
    """Send ``message`` to ``recipients`` and tell what became of each.

    ``before_data`` is called with the recipients that a transaction is about to send to; if it raises
    ``MailError``, nothing is sent to them. Everything that the server or the network does ends in verdicts.
    """
    verdicts: Verdicts = {}
    connection = Connection(server, limits)
    try:
        _begin(connection)
        if message.needs_smtputf8 and not connection.has_extn("smtputf8"):
            raise _Settled(_NO_SMTPUTF8)
        _transactions(connection, message, recipients, verdicts, before_data)
    except _Settled as settled:
        _fill(verdicts, recipients, settled.verdict)
    except (OSError, smtplib.SMTPException) as error:
        _fill(verdicts, recipients, _broken_off(connection, error))
        connection.close()
    except BaseException:
        connection.close()
        raise
    connection.leave()
    return verdicts


def _begin(connection: Connection) -> None:
    """Everything before the mail: greeting, TLS, login."""
    _require(connection, connection.open())
    _require(connection, connection.greet())
    if connection.server.security is Security.STARTTLS:
        if not connection.has_extn("starttls"):
            raise _Settled(
                trouble(Stage.STARTTLS, "the server does not offer STARTTLS, which smtp:// requires", alarm=True)
            )
        # Exactly 220: after any other success the mail would travel in plain
        reply = connection.start_tls()
        if reply.code != 220:
            raise _Settled(trouble(Stage.STARTTLS, f"the server refuses TLS: {reply}", alarm=True))
        _require(connection, connection.greet())
    if connection.server.user is not None:
        _log_in(connection)


def _log_in(connection: Connection) -> None:
    user, password = connection.server.user or "", connection.server.password or ""
    connection.stage = Stage.AUTH
    try:
        connection.login(user, password)
    except smtplib.SMTPResponseException as error:
        words = error.smtp_error if isinstance(error.smtp_error, bytes) else str(error.smtp_error).encode()
        reply = Reply.of(error.smtp_code, _without_secrets(words, user, password))
        raise _Settled(judge(Stage.AUTH, reply)) from None
    except smtplib.SMTPServerDisconnected:
        raise
    except (smtplib.SMTPException, ValueError):  # ValueError: the server's challenge is no base64
        raise _Settled(trouble(Stage.AUTH, "the server does not offer a login that we know", alarm=True)) from None


def _without_secrets(words: bytes, user: str, password: str) -> bytes:
    """Some servers repeat what they were sent."""
    plain = [password, f"\0{user}\0{password}"]
    for secret in [*plain, *(base64.b64encode(text.encode()).decode() for text in plain)]:
        if secret:
            words = words.replace(secret.encode(), b"***")
    return words


def _require(connection: Connection, reply: Reply) -> None:
    if not reply.positive:
        raise _Settled(judge(connection.stage, reply))


def _transactions(
    connection: Connection,
    message: Message,
    recipients: Sequence[str],
    verdicts: Verdicts,
    before_data: Callable[[list[str]], None],
) -> None:
    """Usually one. A server that takes only so many recipients at once gets the others in the next."""
    left = list(recipients)
    while left:
        _transaction(connection, message, left, verdicts, before_data)
        advanced = any(verdicts[recipient].delivery is Delivery.ACCEPTED for recipient in left)
        left = [recipient for recipient in left if verdicts[recipient].next_transaction and advanced]


def _transaction(
    connection: Connection,
    message: Message,
    recipients: Sequence[str],
    verdicts: Verdicts,
    before_data: Callable[[list[str]], None],
) -> None:
    """MAIL, RCPT for each recipient, DATA (RFC 5321 section 3.3)."""
    reply = connection.command(Stage.MAIL, _mail_command(connection, message))
    if not reply.positive:
        verdicts.update(dict.fromkeys(recipients, judge(Stage.MAIL, reply)))
        return
    taken: list[str] = []
    for recipient in recipients:
        reply = connection.command(Stage.RCPT, f"RCPT TO:<{recipient}>")
        if reply.positive:
            taken.append(recipient)
            verdicts.pop(recipient, None)
        else:
            verdicts[recipient] = judge(Stage.RCPT, reply)
            if reply.code == 421:  # the server hangs up, RFC 5321 section 3.8
                raise _Settled(verdicts[recipient])
    if not taken:
        return
    try:
        before_data(taken)
    except MailError as error:
        raise _Settled(trouble(Stage.DATA, str(error))) from None
    reply = connection.command(Stage.DATA, "DATA")
    if reply.code == 354:
        reply = connection.send_mail(message.data)
    elif reply.positive:
        raise smtplib.SMTPServerDisconnected("the server answered DATA with neither 354 nor a refusal")
    verdicts.update(dict.fromkeys(taken, judge(connection.stage, reply)))


def _mail_command(connection: Connection, message: Message) -> str:
    command = f"MAIL FROM:<{message.sender}>"
    if connection.has_extn("size"):  # RFC 1870: learn that it is too long before sending it
        command += f" SIZE={len(message.data)}"
    if message.needs_smtputf8:
        command += " SMTPUTF8"
    return command


def _broken_off(connection: Connection, error: Exception) -> Verdict:
    reason = _reason(error)
    if connection.handed_over:
        return unknown(f"the mail was sent, but no answer came: {reason}")
    return trouble(connection.stage, reason, alarm=isinstance(error, ssl.SSLError))


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate was not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or type(error).__name__}"
    if isinstance(error, OSError) and error.strerror:
        return f"{type(error).__name__}: {error.strerror}"
    return str(error) or type(error).__name__


def _fill(verdicts: Verdicts, recipients: Sequence[str], verdict: Verdict) -> None:
    for recipient in recipients:
        verdicts.setdefault(recipient, verdict)
