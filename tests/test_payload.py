"""What may be a payload: what JSON carries without loss. All else is refused, with its path and a remedy."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from jobqueue.errors import PayloadError
from jobqueue.payload import MAX_CHARACTERS, MAX_DEPTH, check_payload


class Color(Enum):
    RED = 1


class Level(IntEnum):
    LOW = 1


class Word(StrEnum):
    YES = "yes"


@dataclass
class Point:
    x: int


class Model(BaseModel):
    x: int


def faults(payload: object) -> dict[str, str]:
    with pytest.raises(PayloadError) as refusal:
        check_payload(payload)
    assert isinstance(refusal.value, ValueError)
    return dict(refusal.value.faults)


FOREIGN: dict[str, tuple[Any, str]] = {
    "datetime": (datetime(2030, 1, 1, tzinfo=UTC), "isoformat"),
    "date": (date(2030, 1, 1), "isoformat"),
    "time": (time(12), "isoformat"),
    "timedelta": (timedelta(1), "total_seconds"),
    "UUID": (UUID(int=1), "str(value)"),
    "Decimal": (Decimal("0.10"), "str(value)"),
    "bytes": (b"x", "base64"),
    "tuple": ((1, 2), "list(value)"),
    "set": ({1}, "sorted(value)"),
    "frozenset": (frozenset({1}), "sorted(value)"),
    "Enum": (Color.RED, "value.value"),
    "IntEnum": (Level.LOW, "value.value"),
    "StrEnum": (Word.YES, "value.value"),
    "dataclass": (Point(1), "convert it"),
    "pydantic model": (Model(x=1), "model_dump"),
    "Path": (Path("/"), "convert it"),
    "complex": (1j, "convert it"),
    "a type": (int, "convert it"),
    "generator": ((n for n in [1]), "convert it"),
    "nan": (float("nan"), "no JSON number"),
    "infinity": (float("-inf"), "no JSON number"),
    "an int of many digits": (10**1000, "digits"),
    "lone surrogate": ("\ud800", "surrogate"),
    "escaped bytes": (b"\xff".decode("utf-8", "surrogateescape"), "surrogate"),
}


@pytest.mark.parametrize(("value", "remedy"), FOREIGN.values(), ids=FOREIGN.keys())
def test_what_json_cannot_carry_is_refused_with_path_and_remedy(value: Any, remedy: str) -> None:
    found = faults({"a": {"b": [0, value]}, "c": value})
    assert set(found) == {"$.a.b[1]", "$.c"}
    assert all(remedy in reason for reason in found.values())


KEYS: list[Any] = [1, 1.5, True, None, (1, 2), Word.YES, b"k", UUID(int=1)]


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_a_key_that_is_no_text_is_refused(key: Any) -> None:
    (reason,) = faults({"inner": {key: "a"}}).values()
    assert "JSON keys are str" in reason


def test_keys_that_would_be_merged_are_refused() -> None:
    assert "the key 1 is int" in faults({1: "a", "1": "b"})["$"]


@pytest.mark.parametrize(
    "payload", [[], "text", None, 1, 1.5, True, b"{}", (), UserDict(), Model(x=1), Point(1)], ids=repr
)
def test_the_whole_payload_is_a_dict(payload: object) -> None:
    assert set(faults(payload)) == {"$"}


def nested(depth: int, *, lists: bool = False) -> dict[str, Any]:
    value: Any = {}
    for _ in range(depth - 1):
        value = [value] if lists else {"a": value}
    return {"a": value} if lists else value


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 2_000, 100_000])
def test_too_deep_a_payload_is_refused(depth: int, lists: bool) -> None:
    ((path, reason),) = faults(nested(depth, lists=lists)).items()
    assert "levels deep" in reason
    assert len(path) <= 100


def test_the_greatest_depth_is_taken() -> None:
    assert check_payload(nested(MAX_DEPTH)) == nested(MAX_DEPTH)


def test_a_payload_that_contains_itself_is_refused() -> None:
    payload: dict[str, Any] = {"list": []}
    payload["self"] = payload
    payload["list"].append(payload["list"])
    assert faults(payload) == {"$.self": "contains itself", "$.list[0]": "contains itself"}


def test_one_object_in_two_places_is_no_circle() -> None:
    shared = {"a": [1]}
    assert check_payload({"b": shared, "c": [shared, shared]}) == {"b": shared, "c": [shared, shared]}


def test_kinds_of_dict_and_list_come_back_as_plain_ones() -> None:
    class Names(list[str]): ...

    copy = check_payload(OrderedDict(a=defaultdict(int, x=1), b=Names("ab")))
    assert copy == {"a": {"x": 1}, "b": ["a", "b"]}
    assert [type(copy), type(copy["a"]), type(copy["b"])] == [dict, dict, list]


def test_too_large_a_payload_is_refused_once() -> None:
    text = "x" * (MAX_CHARACTERS // 4)
    assert list(faults({"texts": [text] * 10})) == ["$.texts[3]"]
    check_payload({"t": "x" * (MAX_CHARACTERS - 1)})


class Hostile:
    """A key whose text is a trap."""

    def __repr__(self) -> str:
        raise RuntimeError


def test_the_refusal_stays_short_and_never_fails_itself() -> None:
    long = "k" * 1_000_000
    payload = {
        long: b"",
        ("k" * 1_000_000,): 1,
        Hostile(): 1,
        "n" * 41: {"x\ud800" * 100_000: b""},
        "many": [b""] * 1000,
    }
    with pytest.raises(PayloadError) as refusal:
        check_payload(payload)
    assert len(str(refusal.value)) < 5_000
    assert len(refusal.value.faults) == 20
    assert str(refusal.value).encode()
