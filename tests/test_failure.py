"""What is kept of a failure: always storable, short, and saying what happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jobqueue.failure import FALLBACK, MAX_BYTES, clean, failure_summary, failure_text


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def storable(kept: str) -> bool:
    return "\x00" not in kept and kept.encode("utf-8").decode("utf-8") == kept and len(kept.encode()) <= MAX_BYTES


def test_a_failure_names_its_type_its_text_and_where_it_was_raised() -> None:
    kept = failure_text(raised(ValueError("it broke")))
    first, frame, *_ = kept.splitlines()
    assert first == "ValueError: it broke"
    assert frame.strip().startswith(__file__)
    assert frame.endswith("in raised")


def test_types_that_are_not_built_in_are_named_with_their_module() -> None:
    class Refused(Exception): ...

    assert failure_summary(Refused("no")).startswith(f"{__name__}.test_types")
    assert failure_summary(Refused()).endswith(".Refused")


AWKWARD: dict[str, tuple[str, str]] = {
    "NUL": ("x\x00y", "x\\x00y"),
    "lone surrogate": ("x\ud800y", "x\\ud800y"),
    "escaped bytes": (b"\xff".decode("utf-8", "surrogateescape"), "\\udcff"),
    "NUL beside a backslash": ("\\\x00", "\\\\x00"),
    "four-byte letters": ("😀", "😀"),
}


@pytest.mark.parametrize(("given", "kept"), AWKWARD.values(), ids=AWKWARD.keys())
def test_what_the_database_refuses_is_kept_as_a_visible_escape(given: str, kept: str) -> None:
    assert clean(given) == kept
    assert f"ValueError: {kept}" in failure_text(raised(ValueError(given)))
    assert storable(failure_text(raised(ValueError(given))))


@pytest.mark.parametrize("letter", ["x", "ä", "€", "😀", "\x00", "\ud800"])
def test_forty_megabytes_are_cut_by_bytes_and_never_inside_a_character(letter: str) -> None:
    size = 40_000_000 // len(letter.encode("utf-8", "surrogatepass"))
    kept = failure_text(raised(ValueError("head " + letter * size + " tail")))
    assert storable(kept)
    assert kept.startswith("ValueError: head ")
    assert " tail\n" in kept
    assert "[... shortened ...]" in kept
    assert "\ufffd" not in kept
    assert len(kept.encode()) > MAX_BYTES - 20


@pytest.mark.parametrize("offset", range(5))
def test_a_cut_falls_between_characters_at_any_offset(offset: int) -> None:
    kept = clean("x" * offset + "😀€" * 5_000)
    assert storable(kept)
    assert set(kept.replace("\n[... shortened ...]\n", "")) <= {"x", "😀", "€"}


def test_a_text_of_just_the_limit_is_kept_whole() -> None:
    assert clean("ä" * (MAX_BYTES // 2)) == "ä" * (MAX_BYTES // 2)
    assert len(clean("ä" * (MAX_BYTES // 2) + "x").encode()) <= MAX_BYTES


def test_a_deep_recursion_keeps_the_innermost_frames() -> None:
    def fall(depth: int) -> None:
        if depth == 0:
            raise ValueError("bottom")
        fall(depth - 1)

    try:
        fall(900)
    except ValueError as error:
        kept = failure_text(error)
    assert storable(kept)
    assert kept.startswith("ValueError: bottom")
    assert kept.count("in fall") == 12


def test_an_endless_recursion_is_kept() -> None:
    def fall() -> None:
        fall()

    with pytest.raises(RecursionError) as failure:
        fall()
    assert failure_text(failure.value).startswith("RecursionError: maximum recursion depth exceeded")


def test_causes_are_kept_up_to_a_limit_even_in_a_circle() -> None:
    errors = [ValueError(f"number {n}") for n in range(50)]
    for error, cause in zip(errors, errors[1:] + errors[:1], strict=True):
        error.__cause__ = cause
    kept = failure_text(errors[0])
    assert [line for line in kept.splitlines() if "number" in line] == [
        "ValueError: number 0",
        "caused by ValueError: number 1",
        "caused by ValueError: number 2",
        "caused by ValueError: number 3",
    ]


def test_a_suppressed_context_is_left_out() -> None:
    error = ValueError("outer")
    error.__context__ = KeyError("inner")
    assert "caused by KeyError: 'inner'" in failure_text(error)
    error.__suppress_context__ = True
    assert "inner" not in failure_text(error)


class Unspeakable(Exception):
    answer: Any = None

    def __str__(self) -> str:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]


class HostileText(str):
    __slots__ = ()

    def __len__(self) -> int:
        raise RuntimeError

    def __format__(self, spec: str) -> str:
        raise RuntimeError


JUNK = [
    None,
    5,
    b"x",
    RuntimeError("in __str__"),
    SystemExit(3),
    KeyboardInterrupt(),
    RecursionError(),
    HostileText("x"),
]


@pytest.mark.parametrize("answer", JUNK, ids=repr)
@pytest.mark.parametrize("keep", [failure_text, failure_summary])
def test_a_failure_whose_text_cannot_be_read_is_kept_all_the_same(answer: object, keep: Callable[..., str]) -> None:
    error = Unspeakable()
    error.answer = answer
    kept = keep(raised(error))
    assert storable(kept)
    assert "Unspeakable" in kept or kept == FALLBACK


def test_a_summary_is_one_line() -> None:
    assert failure_summary(ValueError("one\ntwo")) == "ValueError: one"
    assert failure_summary(ValueError("")) == "ValueError"
    assert len(failure_summary(ValueError("x" * 40_000_000))) <= 500
