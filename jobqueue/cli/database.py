"""The database of a command: where it is, a session on it, and how to speak of it without its password."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import URL, Engine, NullPool, create_engine
from sqlalchemy.orm import Session

from jobqueue.errors import SettingsError
from jobqueue.settings import Settings, load_settings

CONNECT_SECONDS: Final = 10
"""How long a connection attempt may take, unless the URL says ``connect_timeout``."""

_UNREADABLE: Final = (
    "the database URL cannot be read; write postgresql://user:password@host/name, "
    "with special characters of the password percent-encoded"
)


@dataclass(frozen=True, slots=True)
class Configuration:
    """What the command line was told about its surroundings; the environment says the rest."""

    database_url: str | None = field(default=None, repr=False)

    def settings(self, **values: Any) -> Settings:
        """:raises SettingsError: naming each variable that is wrong, without its value."""
        return load_settings(database_url=self.database_url, **values)

    def url(self) -> URL:
        """The database, with a limit on how long a connection attempt takes.

        :raises SettingsError: if none is named, or the URL cannot be read.
        """
        url = self.settings().require_database_url()
        if "@" in (url.host or ""):
            # An unescaped @ in the password: its second half is taken for the host, and would be shown as such
            raise SettingsError(_UNREADABLE)
        if "connect_timeout" in url.query:
            return url
        return url.update_query_dict({"connect_timeout": str(CONNECT_SECONDS)})

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """An engine for one command."""
        engine = create_engine(
            self.url(),
            poolclass=NullPool,
            # The queue's statements expect it, whatever the server's default is
            isolation_level="READ COMMITTED",
            hide_parameters=True,
            connect_args={"application_name": "jobqueue cli"},
        )
        try:
            yield engine
        finally:
            engine.dispose()

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A session that commits only what the command commits."""
        with self.engine() as engine, Session(engine) as session:
            yield session


def driver_problem() -> str | None:
    """Why psycopg cannot be loaded, and what helps; None if it can. Only a command that needs it finds out."""
    try:
        importlib.import_module("psycopg")
    except ImportError as error:
        chosen = ", or unset PSYCOPG_IMPL" if os.environ.get("PSYCOPG_IMPL") else ""
        reason = str(error).split("\n", 1)[0].rstrip(".")
        return f"psycopg cannot be loaded ({reason}); run `pip install 'psycopg[binary]'`, which brings libpq{chosen}"
    return None


def place(url: URL) -> str:
    """The database and its server, for messages: no user, no password, no query."""
    hosts = _texts(url.host) or _texts(url.query.get("host")) or ["the local socket"]
    ports = [str(url.port)] if url.port else _texts(url.query.get("port"))
    server = ", ".join(hosts) + (f":{', '.join(ports)}" if ports else "")
    database = url.database or (_texts(url.query.get("dbname")) or [url.username or "(default)"])[0]
    return f"the database {database!r} on {server}"


def without_password(words: str, url: URL) -> str:
    """``words`` of the driver, without what the URL has as a password, should they repeat it."""
    for secret in (url.password, *_texts(url.query.get("password"))):
        if secret:
            words = words.replace(str(secret), "***")
    return words


def _texts(value: str | tuple[str, ...] | None) -> list[str]:
    if not value:
        return []
    return [value] if isinstance(value, str) else list(value)
