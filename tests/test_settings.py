"""Settings: from the environment or as arguments, refused with the name of the variable and never its value."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from jobqueue.errors import SettingsError
from jobqueue.settings import load_settings, postgres_url


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "JOBQUEUE_DATABASE_URL", "JOBQUEUE_STALE_AFTER", "JOBQUEUE_CONCURRENCY"):
        monkeypatch.delenv(name, raising=False)


def test_the_defaults_are_those_of_the_design() -> None:
    settings = load_settings()
    assert (settings.concurrency, settings.stale_after) == (10, timedelta(seconds=60))
    assert (settings.timeout, settings.shutdown_timeout) == (timedelta(minutes=15), timedelta(seconds=10))
    assert settings.renew_every == timedelta(seconds=20)


def test_the_environment_is_read_and_arguments_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBQUEUE_CONCURRENCY", "3")
    monkeypatch.setenv("JOBQUEUE_STALE_AFTER", "90")
    assert load_settings().concurrency == 3
    assert load_settings().stale_after == timedelta(seconds=90)
    assert load_settings(concurrency=7, stale_after=None).concurrency == 7
    assert load_settings(concurrency=None).concurrency == 3


@pytest.mark.parametrize(("text", "seconds"), [("60", 60), ("1.5", 1.5), ("PT5M", 300), ("P1D", 86_400)])
def test_times_are_seconds_or_iso_8601(monkeypatch: pytest.MonkeyPatch, text: str, seconds: float) -> None:
    monkeypatch.setenv("JOBQUEUE_STALE_AFTER", text)
    assert load_settings().stale_after == timedelta(seconds=seconds)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "heartbeat as long as stale_after": ({"stale_after": 6, "heartbeat_interval": 6}, "at most a third of stale_after"),
    "heartbeat above stale_after": ({"stale_after": 6, "heartbeat_interval": 10}, "at most a third of stale_after"),
    "heartbeat of the default": ({"heartbeat_interval": 21}, "at most a third"),
    "heartbeat of 0": ({"heartbeat_interval": 0}, "JOBQUEUE_HEARTBEAT_INTERVAL"),
    "no slot": ({"concurrency": 0}, "JOBQUEUE_CONCURRENCY"),
    "too many slots": ({"concurrency": 1001}, "JOBQUEUE_CONCURRENCY"),
    "no number": ({"concurrency": "S3CRET"}, "JOBQUEUE_CONCURRENCY"),
    "negative timeout": ({"timeout": -1}, "JOBQUEUE_TIMEOUT"),
    "no time": ({"timeout": "S3CRET"}, "JOBQUEUE_TIMEOUT"),
    "nan": ({"stale_after": "nan"}, "JOBQUEUE_STALE_AFTER"),
    "infinite": ({"stale_after": "inf"}, "JOBQUEUE_STALE_AFTER"),
    "polling": ({"poll_interval": 10, "poll_interval_max": 5}, "poll_interval_max must not be below"),
    "unknown": ({"concurency": "S3CRET"}, "JOBQUEUE_CONCURENCY"),
}


@pytest.mark.parametrize(("given", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_setting_is_refused_by_name_without_its_value(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as refusal:
        load_settings(**given)
    assert "S3CRET" not in str(refusal.value)
    assert refusal.value.__cause__ is None


def test_a_third_of_stale_after_is_taken() -> None:
    assert load_settings(stale_after=6, heartbeat_interval=2).renew_every == timedelta(seconds=2)


def test_our_own_variable_goes_before_the_common_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://common/a")
    assert load_settings().require_database_url().host == "common"
    monkeypatch.setenv("JOBQUEUE_DATABASE_URL", "postgresql://own/a")
    assert load_settings().require_database_url().host == "own"
    assert load_settings(database_url="postgresql://given/a").require_database_url().host == "given"


def test_without_a_database_the_variable_is_named() -> None:
    with pytest.raises(SettingsError, match="DATABASE_URL is not set"):
        load_settings().require_database_url()


def test_settings_do_not_show_passwords() -> None:
    settings = load_settings(database_url="postgresql://ada:S3CRET@db/app", smtp_url="smtp://ada:S3CRET@mail")
    assert "S3CRET" not in repr(settings)
    assert "S3CRET" not in str(settings)


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg", "postgresql+asyncpg", "postgresql+psycopg2"])
def test_any_driver_becomes_psycopg(scheme: str) -> None:
    url = postgres_url(f"{scheme}://ada:p%40ss@db:5433/app?sslmode=require")
    assert url.render_as_string(hide_password=False) == ("postgresql+psycopg://ada:p%40ss@db:5433/app?sslmode=require")


UNREADABLE = ["", "S3CRET", "postgresql", "postgresql://ada:p@db:S3CRET/app", "postgresql://ada:S3CRET@[::1/app"]


@pytest.mark.parametrize("url", [*UNREADABLE, "mysql://ada:S3CRET@db/app", "sqlite:///S3CRET"])
def test_a_database_url_that_cannot_be_used_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        postgres_url(url)
    assert "S3CRET" not in str(refusal.value)
    assert refusal.value.__cause__ is None
