"""Settings: from the environment and keyword arguments, validated once, at the start."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Self

from pydantic import AliasChoices, BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from jobqueue.errors import SettingsError


def _from_text(value: Any) -> Any:
    """Pydantic takes numbers as seconds, but not numbers in a text, which is all that an environment has."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        if value.lstrip("+-").startswith("P"):
            return value
        raise ValueError("give seconds, as in 60, or an ISO 8601 duration, as in PT1M") from None


Duration = Annotated[timedelta, BeforeValidator(_from_text), Field(le=timedelta(days=365))]


class Settings(BaseSettings):
    """What a worker and the command line need to know. Times are in seconds where the environment gives them.

    Use :func:`load_settings`, whose errors name the variable and never repeat a value.
    """

    model_config = SettingsConfigDict(env_prefix="JOBQUEUE_", populate_by_name=True, extra="forbid", frozen=True)

    database_url: SecretStr | None = Field(
        None,
        validation_alias=AliasChoices("JOBQUEUE_DATABASE_URL", "DATABASE_URL"),
        description="the application's database, as postgresql://user:password@host/name",
    )
    concurrency: int = Field(10, ge=1, le=1000, description="attempts that run at once in one worker process")
    stale_after: Duration = Field(
        timedelta(seconds=60),
        ge=timedelta(seconds=1),
        description="a claim not renewed for this long is given up; the same for all workers",
    )
    heartbeat_interval: Duration | None = Field(
        None,
        gt=timedelta(0),
        description="how often claims are renewed; at most, and by default, stale_after / 3",
    )
    timeout: Duration = Field(
        timedelta(minutes=15),
        ge=timedelta(0),
        description="the longest attempt, unless the handler says; 0 for none",
    )
    shutdown_timeout: Duration = Field(
        timedelta(seconds=10),
        ge=timedelta(0),
        description="how long a stopping worker waits for running attempts",
    )
    poll_interval: Duration = Field(
        timedelta(milliseconds=200),
        gt=timedelta(0),
        description="the first pause when nothing is due; it doubles",
    )
    poll_interval_max: Duration = Field(
        timedelta(seconds=5), gt=timedelta(0), description="the longest pause between two looks for work"
    )
    smtp_url: SecretStr | None = Field(
        None,
        description="smtp://user:password@host:587 (STARTTLS), smtps://...:465 (TLS), or smtp+plain://host:25",
    )
    smtp_sender: str | None = Field(None, description="the From of mails whose payload names none")
    smtp_timeout: Duration = Field(
        timedelta(seconds=30),
        gt=timedelta(0),
        description="the longest wait for one answer of the SMTP server",
    )

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        if self.heartbeat_interval is not None and self.heartbeat_interval > self.stale_after / 3:
            raise ValueError(
                f"heartbeat_interval ({self.heartbeat_interval}) must be at most a third of stale_after "
                f"({self.stale_after}), so that two late renewals in a row do not lose a claim"
            )
        if self.poll_interval_max < self.poll_interval:
            raise ValueError("poll_interval_max must not be below poll_interval")
        return self

    @property
    def renew_every(self) -> timedelta:
        """How often running claims are renewed."""
        return self.heartbeat_interval or self.stale_after / 3

    def require_database_url(self) -> URL:
        """:raises SettingsError: if there is no ``DATABASE_URL``, or it is not one of PostgreSQL."""
        if self.database_url is None:
            raise SettingsError("DATABASE_URL is not set; set it to postgresql://user:password@host/name")
        return postgres_url(self.database_url.get_secret_value())


def load_settings(**values: Any) -> Settings:
    """Settings from the environment; ``values`` go first, and those that are None do not count.

    :raises SettingsError: naming each variable that is wrong, without its value.
    """
    try:
        return Settings(**{name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        faults = error.errors(include_input=False, include_url=False)
        raise SettingsError("; ".join(f"{_variable(fault['loc'])}: {fault['msg']}" for fault in faults)) from None


def postgres_url(text: str) -> URL:
    """A database URL as SQLAlchemy with psycopg takes it, whatever driver it names.

    :raises SettingsError: if it is no PostgreSQL URL. The message does not repeat it.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # ValueError: the port is no number; it may be part of a password
        raise SettingsError(
            "the database URL cannot be read; write postgresql://user:password@host/name, "
            "with special characters of the password percent-encoded"
        ) from None
    if url.get_backend_name() not in {"postgresql", "postgres"}:
        raise SettingsError(f"jobqueue needs PostgreSQL; the database URL is one of {url.get_backend_name()!r}")
    return url.set(drivername="postgresql+psycopg")


def _variable(location: tuple[int | str, ...]) -> str:
    name = str(location[0]) if location else "settings"
    return name if name.isupper() or not location else f"JOBQUEUE_{name.upper()}"
