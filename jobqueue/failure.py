"""What is kept of a failure: a short text that PostgreSQL stores in any case, without the data of others.

Recording a failure is the one write that must not fail. And the text is read by people who may not see the
payload: bound parameters, rows in error details, and the user part and query of URLs are left out.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from typing import Final

from sqlalchemy.exc import DBAPIError, StatementError

MAX_BYTES: Final = 4096
"""The longest text that is kept, in bytes of UTF-8. Of a longer one the head and the tail remain."""

FALLBACK: Final = "the failure has no text that could be stored"

_MAX_FRAMES: Final = 12
_MAX_CAUSES: Final = 4
_SCAN: Final = 32 * 1024

_URL_USER: Final = re.compile(r"(?<=://)[^/\s?#'\"<>]*@")
_URL_QUERY: Final = re.compile(r"(://[^\s?#'\"<>]*\?)[^\s#'\"<>]+")
_CONNECTION_PASSWORD: Final = re.compile(
    r"(?i)\b(password|passwd|secret|token|api_?key)(\s*=\s*)('[^']*'|\"[^\"]*\"|[^\s&,;]+)"
)


def failure_text(error: BaseException) -> str:
    """``error`` with its causes and innermost frames, cleaned and cut. Never raises."""
    try:
        return clean("\n".join(_lines(error)))
    except Exception:
        return FALLBACK


def failure_summary(error: BaseException) -> str:
    """The first line of :func:`failure_text`, for logs."""
    try:
        return clean(_headline(error)).splitlines()[0][:500]
    except Exception:
        return FALLBACK


def clean(text: str, max_bytes: int = MAX_BYTES) -> str:
    """``text`` as PostgreSQL can store it: NUL and lone surrogates as visible escapes, secrets in URLs masked.

    At most ``max_bytes`` bytes of UTF-8, never cut inside a character; head and tail are kept.
    """
    text = _shorten(text, _SCAN)
    text = mask(text).replace("\x00", "\\x00")
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= max_bytes:
        return data.decode()
    mark = b"\n[... shortened ...]\n"
    room = max_bytes - len(mark)
    head, tail = data[: room // 2], data[-(room - room // 2) :]
    return head.decode("utf-8", "ignore") + mark.decode() + tail.decode("utf-8", "ignore")


def mask(text: str) -> str:
    """``text`` without the user part and the query of URLs, and without ``password=...`` and the like."""
    text = _URL_USER.sub("***@", text)
    text = _URL_QUERY.sub(r"\1***", text)
    return _CONNECTION_PASSWORD.sub(r"\1\2***", text)


def _lines(error: BaseException) -> Iterator[str]:
    seen: set[int] = set()
    cause: BaseException | None = error
    prefix = ""
    while cause is not None and id(cause) not in seen and len(seen) < _MAX_CAUSES:
        seen.add(id(cause))
        yield prefix + _headline(cause)
        frames = traceback.extract_tb(cause.__traceback__, limit=-_MAX_FRAMES)
        yield from (f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in reversed(frames))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
        prefix = "caused by "


def _headline(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    text = _message(error)
    return f"{name}: {text}" if text else name


def _message(error: BaseException) -> str:
    try:
        if isinstance(error, StatementError):
            # str() of it repeats the statement and its parameters; the driver's words are enough
            return _without_detail(_shorten(str(error.orig or error.args[0]), _SCAN))
        text = _shorten(str(error), _SCAN)
        return _without_detail(text) if _is_driver_error(error) else text
    except Exception:
        return "(its text cannot be read)"


def _is_driver_error(error: BaseException) -> bool:
    return isinstance(error, DBAPIError) or type(error).__module__.split(".")[0] in {"psycopg", "asyncpg"}


def _without_detail(text: str) -> str:
    """PostgreSQL's DETAIL and CONTEXT repeat the row's values."""
    return re.split(r"\n(?=DETAIL:|CONTEXT:|LINE \d+:)", text, maxsplit=1)[0]


def _shorten(text: str, characters: int) -> str:
    if len(text) <= 2 * characters:
        return text
    return text[:characters] + "\n[... shortened ...]\n" + text[-characters:]
