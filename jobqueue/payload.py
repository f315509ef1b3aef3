"""What may be a payload: a JSON object that comes back from the database just as it went in.

Whatever JSON cannot carry, or would change silently (a tuple becomes a list, the key 1 the key "1"), is
refused with its path, before any SQL is sent.

What remains is a matter of jsonb, which knows decimal numbers only: a float from 1e16 on comes back as the int of the
same digits, and -0.0 as 0.0. A field that a handler's type declares as float comes back as the float it was.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from jobqueue.errors import HandlerError, PayloadError

Json = dict[str, Any]
"""A payload as it is stored: a JSON object."""

MAX_DEPTH: Final = 200
MAX_CHARACTERS: Final = 16 * 1024 * 1024
_MAX_INT: Final = 10**1000

T = TypeVar("T")

_REMEDIES: Final[dict[type, str]] = {
    datetime: "pass value.isoformat()",
    date: "pass value.isoformat()",
    time: "pass value.isoformat()",
    timedelta: "pass value.total_seconds()",
    UUID: "pass str(value)",
    Decimal: "pass str(value)",
    bytes: "pass text, for example base64; keep large data in a table and enqueue its id",
    tuple: "it would come back as a list; pass list(value)",
    set: "pass sorted(value)",
    frozenset: "pass sorted(value)",
}


def check_payload(payload: object) -> Json:
    """Return a copy of ``payload`` that holds only what JSON carries without loss.

    :raises PayloadError: with the path of the first fault of each branch.
    """
    if not isinstance(payload, dict):
        raise PayloadError([("$", f"must be a dict (a JSON object), got {_type_name(payload)}")])
    checker = _Checker()
    copy = checker.mapping(payload, "$", 1)
    if checker.faults:
        raise PayloadError(checker.faults)
    return copy


class _Checker:
    """One walk over a payload, which collects faults rather than stop at the first."""

    def __init__(self) -> None:
        self.faults: list[tuple[str, str]] = []
        self._open: set[int] = set()
        self._characters = 0

    def mapping(self, value: dict[Any, Any], path: str, depth: int) -> Json:
        copy: Json = {}
        if self._enter(value, path, depth):
            for key, item in value.items():
                if type(key) is not str:
                    self._fault(path, f"the key {_shown(key)} is {_type_name(key)}; JSON keys are str: pass str(key)")
                    continue
                inner = f"{path}.{key}" if len(key) <= 40 and key.isidentifier() else f"{path}[{_shown(key)}]"
                self._text(key, inner, "the key")
                copy[key] = self._value(item, inner, depth + 1)
            self._open.discard(id(value))
        return copy

    def _array(self, value: list[Any], path: str, depth: int) -> list[Any]:
        copy: list[Any] = []
        if self._enter(value, path, depth):
            copy = [self._value(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
            self._open.discard(id(value))
        return copy

    def _value(self, value: Any, path: str, depth: int) -> Any:
        # Exact types: a subclass (StrEnum, numpy.float64, ...) would come back as its base
        kind = type(value)
        if kind is str:
            self._text(value, path, "the text")
        elif kind is float:
            if not math.isfinite(value):
                self._fault(path, f"{value!r} is no JSON number; pass None or a text")
        elif kind is int:
            if not -_MAX_INT < value < _MAX_INT:
                self._fault(path, "an int of more than 1,000 digits; pass a text")
        elif isinstance(value, dict):
            return self.mapping(value, path, depth)
        elif isinstance(value, list):
            return self._array(value, path, depth)
        elif not (value is None or kind is bool):
            self._fault(path, f"{_type_name(value)} is no JSON value; {_remedy(value)}")
        return value

    def _enter(self, value: object, path: str, depth: int) -> bool:
        if id(value) in self._open:
            self._fault(path, "contains itself")
        elif depth > MAX_DEPTH:
            self._fault(path[:100], f"nested more than {MAX_DEPTH} levels deep")
        else:
            self._open.add(id(value))
            return True
        return False

    def _text(self, value: str, path: str, what: str) -> None:
        self._characters += len(value)
        if self._characters > MAX_CHARACTERS >= self._characters - len(value):
            self._fault(
                path,
                f"the payload exceeds {MAX_CHARACTERS:,} characters; keep the data in a table and enqueue its id",
            )
        if "\x00" in value:
            self._fault(path, f"{what} holds the character NUL (U+0000), which PostgreSQL cannot store; remove it")
        elif not _is_unicode(value):
            self._fault(path, f"{what} holds a lone surrogate, which is no Unicode text; replace or remove it")

    def _fault(self, path: str, reason: str) -> None:
        if len(self.faults) < 20:
            self.faults.append((path, reason))


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _remedy(value: object) -> str:
    if isinstance(value, Enum):
        return "pass value.value"
    if isinstance(value, BaseModel):
        return "pass value.model_dump(mode='json')"
    for kind, remedy in _REMEDIES.items():
        if isinstance(value, kind):
            return remedy
    return "convert it to str, int, float, bool, None, list or dict"


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _shown(key: object) -> str:
    """A key as part of a path: visible escapes, and not its whole length."""
    if type(key) is str:
        return ascii(key[:40]) + ("..." if len(key) > 40 else "")
    # Only of what has a short and harmless repr
    return repr(key)[:40] if isinstance(key, int | float | None) else "of that type"


@dataclass(frozen=True, slots=True)
class PayloadType(Generic[T]):
    """What a handler declares as the type of its payload: ``dict``, a pydantic model, a dataclass or a TypedDict."""

    annotation: Any
    _adapter: TypeAdapter[T] | None

    @classmethod
    def of(cls, annotation: Any) -> PayloadType[Any]:
        """:raises HandlerError: if pydantic cannot make a schema of ``annotation``."""
        if annotation in (dict, Json, Mapping, Any) or annotation == dict[str, object]:
            return cls(annotation, None)
        try:
            return cls(annotation, TypeAdapter(annotation))
        except PydanticUserError as error:
            raise HandlerError(
                f"{annotation!r} cannot be a payload type ({error.message}); "
                "use dict, a pydantic model, a dataclass or a TypedDict"
            ) from error

    def dump(self, payload: object) -> Json:
        """The JSON object for a payload given at enqueue, after checking it against the type.

        :raises PayloadError: with the path of each fault.
        """
        if self._adapter is None:
            return check_payload(payload)
        value = _validated(self._adapter.validate_python, payload)
        try:
            # round_trip leaves out computed fields, which the type would refuse at parse time; and by name, since a
            # field may be written under another alias than it is read
            dumped = self._adapter.dump_python(value, mode="json", by_alias=False, round_trip=True, warnings="error")
        except Exception as error:
            raise PayloadError([("$", f"cannot be written as JSON: {error}")]) from error
        return check_payload(dumped)

    def parse(self, text: str) -> T:
        """The handler's payload from the stored JSON.

        :raises PayloadError: with the path of each fault.
        """
        if self._adapter is None:
            return read_json(text)  # type: ignore[return-value]  # the annotation is dict
        return _validated(self._adapter.validate_json, text)


def read_json(text: str) -> Json:
    """A stored payload.

    :raises PayloadError: Python cannot read what somebody stored past jobqueue: a number of too many digits, too
        many levels.
    """
    try:
        payload: Json = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PayloadError([("$", f"cannot be read: {type(error).__name__}: {error}")]) from None
    return payload


def _validated(validate: Callable[..., T], payload: object) -> T:
    try:
        return validate(payload, by_alias=True, by_name=True)
    except ValidationError as error:
        # include_input=False: what is wrong belongs into logs, the data does not
        raise PayloadError(
            (_path(fault["loc"]), fault["msg"]) for fault in error.errors(include_input=False, include_url=False)
        ) from None


def _path(location: tuple[int | str, ...]) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
