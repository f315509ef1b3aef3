"""Which mail server to use, and how: read from the URL of ``JOBQUEUE_SMTP_URL``."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Final, Self
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from jobqueue.errors import SettingsError

VARIABLE: Final = "JOBQUEUE_SMTP_URL"

_FORMS: Final = "smtp://user:password@host:587 (STARTTLS), smtps://...:465 (TLS) or smtp+plain://host:25"


class Security(Enum):
    """How the connection is protected."""

    STARTTLS = "starttls"
    """Begun in plain, and given up unless the server then goes over to TLS (RFC 3207)."""
    TLS = "tls"
    """From the first byte (RFC 8314)."""
    NONE = "none"
    """Not at all: for a server on the same machine, and for tests."""


_SCHEMES: Final = {
    "smtp": (Security.STARTTLS, 587),
    "smtps": (Security.TLS, 465),
    "smtp+plain": (Security.NONE, 25),
}


@dataclass(frozen=True, slots=True)
class SmtpServer:
    """A mail server. Its text form names host and port only."""

    host: str
    port: int
    security: Security
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    local_hostname: str | None = None
    """What we call ourselves in EHLO; by default the machine's name."""
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Read ``smtp://user:password@host:port?local_hostname=...&ca_file=...``.

        User and password are percent-decoded. ``ca_file`` names certificates of authorities to trust besides the
        system's.

        :raises SettingsError: if it cannot be read. The message does not repeat the URL.
        """
        parts = _split(url)
        security, default_port = _SCHEMES[parts.scheme]
        options = _options(parts.query)
        user, password = _login(parts)
        return cls(
            host=parts.hostname or "",
            port=parts.port or default_port,
            security=security,
            user=user,
            password=password,
            local_hostname=options.get("local_hostname"),
            tls=None if security is Security.NONE else _tls_context(options.get("ca_file")),
        )

    @property
    def ehlo_name(self) -> str:
        return self.local_hostname or _own_name()

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        usable = parts.scheme in _SCHEMES and bool(host) and (parts.port is None or parts.port > 0)
    except ValueError:
        # Its text may hold a part of the password
        usable = False
    if not usable:
        raise SettingsError(
            f"{VARIABLE} cannot be read; write {_FORMS}, with special characters of the password percent-encoded"
        )
    if parts.path not in ("", "/") or parts.fragment:
        raise SettingsError(
            f"{VARIABLE} has something after the host; the characters / ? # of a password must be percent-encoded"
        )
    return parts


def _options(query: str) -> dict[str, str]:
    options = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}
    if not options.keys() <= {"local_hostname", "ca_file"}:
        raise SettingsError(f"{VARIABLE} has an unknown option; it takes local_hostname and ca_file")
    name = options.get("local_hostname", "-")
    if not name.isascii() or not name.isprintable() or " " in name or not name:
        raise SettingsError(f"{VARIABLE}: local_hostname must be a host name")
    return options


def _login(parts: SplitResult) -> tuple[str | None, str | None]:
    if parts.username is None:
        return None, None
    user, password = unquote(parts.username), unquote(parts.password or "")
    if not (user.isascii() and password.isascii()):
        raise SettingsError(f"{VARIABLE}: user and password must be ASCII; smtplib cannot send others")
    return user, password


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except OSError:  # ssl.SSLError too
            raise SettingsError(f"{VARIABLE}: ca_file cannot be read, or holds no certificates") from None
    return context


@cache
def _own_name() -> str:
    """This machine's name for EHLO, else an address literal (RFC 5321 section 4.1.4). Asked once: it may take DNS."""
    name = socket.getfqdn()
    return name if "." in name and name.isascii() else "[127.0.0.1]"
