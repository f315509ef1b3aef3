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

from jobqueue.bundled.email.handler import MAX_ATTEMPTS, WAIT, email_send, handlers, handlers_for
from jobqueue.bundled.email.mail import Attachment, Email

__all__ = ["MAX_ATTEMPTS", "WAIT", "Attachment", "Email", "email_send", "handlers", "handlers_for"]
