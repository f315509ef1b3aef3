"""Types of arguments and options: what a person writes, and what the code takes."""

from __future__ import annotations

import getpass
import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Final

import click

from jobqueue.models.checks import MAX_ENQUEUE_DELAY

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGE: Final = re.compile(r"(?:[0-9]{1,12}[smhdw])+")
_AGE_PART: Final = re.compile(r"([0-9]+)([smhdw])")
_DOTTED: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """What ``parse`` makes of a text; the text of its ValueError is what the user reads."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def parse_age(text: str) -> timedelta:
    """A length of time, as in ``90s``, ``15m``, ``2h``, ``7d``, ``1h30m``."""
    if not _AGE.fullmatch(text):
        raise ValueError(f"{text!r} is no length of time; write a number and a unit, as in 90s, 15m, 2h, 7d")
    try:
        age = sum((timedelta(**{_UNITS[unit]: int(n)}) for n, unit in _AGE_PART.findall(text)), timedelta(0))
    except OverflowError:
        age = timedelta.max
    if age > MAX_ENQUEUE_DELAY:
        raise ValueError(f"{text!r} is longer than {MAX_ENQUEUE_DELAY.days:,} days")
    return age


def parse_instant(text: str) -> datetime:
    """A point in time in ISO 8601, with its time zone."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time in ISO 8601; write it as in 2030-01-31T08:00:00Z") from None
    if instant.utcoffset() is None:
        raise ValueError(f"{text!r} has no time zone; add Z for UTC, or an offset as in +02:00")
    return instant


def parse_payload(text: str) -> dict[str, Any]:
    """A JSON object, or ``-`` for standard input. What it holds is never repeated in an error."""
    try:
        payload = json.loads(sys.stdin.buffer.read().decode() if text == "-" else text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("the payload is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("the payload is not UTF-8") from None
    except ValueError as error:
        raise ValueError(f"the payload is no JSON: {error}") from None
    if not isinstance(payload, dict):
        raise ValueError('the payload must be a JSON object, as in {"to": "ada@example.com"}')
    return payload


def parse_kinds(text: str) -> list[str]:
    """One kind, or several with commas between them."""
    kinds = [kind.strip() for kind in text.split(",")]
    if not all(kinds):
        raise ValueError(f"{text!r} holds an empty name; write a,b")
    return kinds


def parse_handlers_name(text: str) -> tuple[str, str]:
    """``MODULE:NAME``; imported by ``loading.load_handlers``, not here."""
    module, _, name = text.partition(":")
    if not (_DOTTED.fullmatch(module) and _DOTTED.fullmatch(name)):
        raise ValueError(f"{text!r} names no registry; write MODULE:NAME, as in myapp.jobs:handlers")
    return module, name


AGE: Final = Parsed("age", parse_age)
INSTANT: Final = Parsed("time", parse_instant)
PAYLOAD: Final = Parsed("json", parse_payload)
KINDS: Final = Parsed("kinds", parse_kinds)
HANDLERS: Final = Parsed("module:handlers", parse_handlers_name)

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
