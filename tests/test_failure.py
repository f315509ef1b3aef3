"""What is kept of a failure: always storable, short, and saying what happened."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

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


def test_beside_the_innermost_frames_those_of_the_application_are_kept() -> None:
    def library(depth: int) -> None:
        if depth == 0:
            raise ValueError("bottom")
        code(depth - 1)

    def mine() -> None:
        library(30)

    source = "def again(depth): library(depth)"
    names: dict[str, Any] = {"library": library}
    exec(compile(source, "/opt/venv/lib/python3.11/site-packages/orm/engine.py", "exec"), names)
    code = names["again"]
    foreign = library.__code__.replace(co_filename="/opt/venv/lib/python3.11/site-packages/orm/engine.py")
    library.__code__ = foreign
    with pytest.raises(ValueError) as failure:
        mine()
    frames = failure_text(failure.value).splitlines()[1:]
    assert len(frames) == 12
    assert all("orm/engine.py" in frame for frame in frames[:-2])
    assert frames[-2].endswith("in mine")
    assert frames[-1].startswith(f"  {__file__}:")


def test_an_error_out_of_sqlalchemy_shows_the_line_that_asked_for_it() -> None:
    def asks() -> None:
        create_engine("sqlite://").connect().execute(text("SELECT nothing"))

    with pytest.raises(OperationalError) as failure:
        asks()
    own = [line for line in failure_text(failure.value).splitlines() if line.startswith(f"  {__file__}")]
    assert [line.rsplit(" in ")[-1] for line in own][:1] == ["asks"]


def test_of_an_application_that_is_installed_the_place_where_it_calls_a_library_is_kept() -> None:
    names: dict[str, Any] = {}
    for package, source in {
        "orm": "def execute(depth):\n if not depth: raise ValueError\n execute(depth - 1)",
        "shop": "def order():\n execute(30)",
        "web": "def dispatch(depth):\n if not depth: order()\n else: dispatch(depth - 1)",
    }.items():
        exec(compile(source, f"/usr/lib/python3/dist-packages/{package}/it.py", "exec"), names)
    with pytest.raises(ValueError) as failure:
        names["dispatch"](30)
    kept = failure_text(failure.value)
    assert "dist-packages/shop/it.py:2 in order" in kept
    assert kept.splitlines()[-1].endswith(
        "in test_of_an_application_that_is_installed_the_place_where_it_calls_a_library_is_kept"
    )


def test_frames_of_python_itself_give_way_to_those_of_the_application() -> None:
    import json

    def hook(pairs: object) -> None:
        raise ValueError("bottom")

    with pytest.raises(ValueError) as failure:
        json.loads("{}", object_pairs_hook=hook)
    kept = failure_text(failure.value)
    assert "in hook" in kept.splitlines()[1]
    assert sys.modules["json"].__file__ is not None
    assert f"{json.__file__}:" in kept


def group(*errors: Exception) -> BaseException:
    return raised(ExceptionGroup("unhandled errors in a TaskGroup", errors))


def test_a_group_tells_what_each_of_its_exceptions_says_and_where_it_was_raised() -> None:
    kept = failure_text(group(raised(ValueError("one")), group(raised(KeyError("two"))), OSError("three")))  # type: ignore[arg-type]
    lines = kept.splitlines()
    assert lines[0] == "ExceptionGroup: unhandled errors in a TaskGroup (3 sub-exceptions)"
    told = [line for line in lines if line.startswith("  | ")]
    assert told[0] == "  | ValueError: one"
    assert told[1].startswith(f"  |   {__file__}:")
    assert "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)" in told
    assert told.index("  | KeyError: 'two'") < told.index("  | OSError: three")


def test_of_a_group_a_bounded_number_is_told_and_of_each_a_bounded_text() -> None:
    kept = failure_text(group(*(ValueError(f"number {n} " + "x" * 100_000) for n in range(500))))
    assert "  | ValueError: number 7 " in kept
    assert "number 8 " not in kept
    assert kept.endswith("  | and 492 more")
    assert storable(kept)


def test_a_group_as_a_cause_is_told_too() -> None:
    error = ValueError("outer")
    error.__cause__ = group(KeyError("inner"))
    assert "  | KeyError: 'inner'" in failure_text(error)


def test_groups_nested_deeply_are_kept() -> None:
    error: Exception = ValueError("bottom")
    for _ in range(5_000):
        error = ExceptionGroup("level", [error])
    assert storable(failure_text(error))
    assert failure_summary(error) == "ExceptionGroup: level (1 sub-exception): ValueError: bottom"


def test_the_summary_of_a_group_has_the_first_of_its_exceptions() -> None:
    summary = failure_summary(group(ValueError("one\ntwo"), KeyError("three")))
    assert summary == "ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions): ValueError: one two"
    assert len(failure_summary(group(ValueError("x" * 40_000_000)))) <= 500


def test_notes_are_kept_clean_and_short() -> None:
    error = ValueError("it broke")
    for note in ("order 17\nof shop 4", "password=S3CRET", "x" * 1_000_000 + " \x00", "one too many"):
        error.add_note(note)
    lines = failure_text(error).splitlines()
    assert lines[:3] == ["ValueError: it broke", "  note: order 17 of shop 4", "  note: password=***"]
    assert lines[3].startswith("  note: xxx")
    assert len(lines[3]) < 400
    assert "one too many" not in failure_text(error)
    assert "  |   note: order 17 of shop 4" in failure_text(group(error))


@pytest.mark.parametrize("notes", [None, 5, "text", [5], [None], {"a": 1}, [RuntimeError()]], ids=repr)
def test_notes_that_are_none_do_no_harm(notes: object) -> None:
    error = ValueError("it broke")
    error.__notes__ = notes  # type: ignore[assignment]
    assert failure_text(error).startswith("ValueError: it broke")


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
