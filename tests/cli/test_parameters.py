"""What a person may write for a length of time, kinds and handlers."""

from __future__ import annotations

import getpass
import os
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobqueue.cli.output import age
from jobqueue.cli.parameters import current_actor, parse_age, parse_handlers_name, parse_kinds


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("90s", timedelta(seconds=90)),
        ("15m", timedelta(minutes=15)),
        ("2h", timedelta(hours=2)),
        ("7d", timedelta(days=7)),
        ("2w", timedelta(weeks=2)),
        ("1h30m", timedelta(minutes=90)),
        ("0s", timedelta(0)),
    ],
)
def test_an_age_is_a_number_and_a_unit(text, span):
    assert parse_age(text) == span


@pytest.mark.parametrize(
    "text", ["", "15", "m", "-1h", "1.5h", "1 h", "1y", "1H", "99999d", "999999999999d", "9" * 30 + "s"]
)
def test_anything_else_is_no_age(text):
    with pytest.raises(ValueError, match=r"write a number and a unit|is longer than"):
        parse_age(text)


@given(st.timedeltas(timedelta(0), timedelta(days=36_000)))
def test_an_age_that_is_shown_is_one_that_can_be_written(span):
    assert timedelta(0) <= span - parse_age(age(span)) < max(span / 10, timedelta(seconds=1))


def test_kinds_may_be_separated_by_commas():
    assert parse_kinds("a, b") == ["a", "b"]
    with pytest.raises(ValueError, match="empty name"):
        parse_kinds("a,,b")


@pytest.mark.parametrize(
    "text", ["", "app", "app:", ":handlers", "app.py:handlers:x", "a b:c", ".app:handlers", "app:1"]
)
def test_handlers_are_named_by_module_and_name(text):
    assert parse_handlers_name("shop.jobs:registry.handlers") == ("shop.jobs", "registry.handlers")
    with pytest.raises(ValueError, match="MODULE:NAME"):
        parse_handlers_name(text)


def test_a_user_id_without_a_name_still_acts(monkeypatch):
    def nameless():
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", nameless)
    assert current_actor() == f"cli:uid {os.getuid()}"
