"""Types of arguments and options: what a person writes, and what the code takes."""

from __future__ import annotations

import getpass
import json
import os
import re
import sys
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final

import click

from jobqueue.models.checks import MAX_ENQUEUE_DELAY

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGE: Final = re.compile(r"(?:\d{1,12}[smhdw])+")
_DOTTED: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class AgeType(click.ParamType):
    """A length of time, as in ``90s``, ``15m``, ``2h``, ``7d``, ``1h30m``."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        text = str(value).strip().lower()
        if not _AGE.fullmatch(text):
            self.fail(f"{value!r} is no length of time; write a number and a unit, as in 90s, 15m, 2h, 7d", param, ctx)
        try:
            age = sum(
                (timedelta(**{_UNITS[unit]: int(number)}) for number, unit in re.findall(r"(\d+)([a-z])", text)),
                timedelta(0),
            )
        except OverflowError:
            age = timedelta.max
        if age > MAX_ENQUEUE_DELAY:
            self.fail(f"{value!r} is longer than {MAX_ENQUEUE_DELAY.days:,} days", param, ctx)
        return age


class InstantType(click.ParamType):
    """A point in time in ISO 8601, with its time zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            instant = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is no time in ISO 8601; write it as in 2030-01-31T08:00:00Z", param, ctx)
        if instant.utcoffset() is None:
            self.fail(f"{value!r} has no time zone; add Z for UTC, or an offset as in +02:00", param, ctx)
        return instant


class PayloadJson(click.ParamType):
    """A JSON object, or ``-`` for standard input. Never repeated in an error."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        try:
            text = sys.stdin.buffer.read().decode() if value == "-" else str(value)
            payload = json.loads(text, object_pairs_hook=_object)
        except RecursionError:
            self.fail("the payload is nested too deeply", param, ctx)
        except UnicodeDecodeError:
            self.fail("the payload is not UTF-8", param, ctx)
        except ValueError as error:
            self.fail(f"the payload is no JSON: {error}", param, ctx)
        if not isinstance(payload, dict):
            self.fail('the payload must be a JSON object, as in {"to": "ada@example.com"}', param, ctx)
        return payload


class KindsType(click.ParamType):
    """One kind, or several with commas between them."""

    name = "kinds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        if isinstance(value, list):
            return value
        kinds = [kind.strip() for kind in str(value).split(",")]
        if not all(kinds):
            self.fail(f"{value!r} holds an empty name; write a,b", param, ctx)
        return kinds


class HandlersName(click.ParamType):
    """``MODULE:NAME``; imported by ``loading.load_handlers``, not here."""

    name = "module:handlers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value[0], value[1]
        module, _, name = str(value).partition(":")
        if not (_DOTTED.fullmatch(module) and _DOTTED.fullmatch(name)):
            self.fail(f"{value!r} names no registry; write MODULE:NAME, as in myapp.jobs:handlers", param, ctx)
        return module, name


AGE: Final = AgeType()
INSTANT: Final = InstantType()
PAYLOAD: Final = PayloadJson()
KINDS: Final = KindsType()
HANDLERS: Final = HandlersName()

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")


def flat(lists: Iterable[list[str]]) -> list[str]:
    """The values of a repeatable option that takes lists, each once, in order."""
    return list(dict.fromkeys(value for values in lists for value in values))


def current_actor() -> str:
    """Who acts, for ``created_by`` and the audit log."""
    try:
        return f"cli:{getpass.getuser()}"
    except (OSError, KeyError):  # a user id without a name, as in many containers
        return f"cli:uid {os.getuid()}"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; a key that is there twice would lose one of its values without a word."""
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("an object has the same key twice")
    return result
