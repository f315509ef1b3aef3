"""What is kept of a failure: a short text that PostgreSQL stores in any case, without the data of others.

Recording a failure is the one write that must not fail. And the text is read by people who may not see the
payload: bound parameters, rows in error details, and the user part and query of URLs are left out.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from typing import Final

from sqlalchemy.exc import StatementError

MAX_BYTES: Final = 4096
"""The longest text that is kept, in bytes of UTF-8. Of a longer one the head and the tail remain."""

FALLBACK: Final = "the failure has no text that could be stored"

_MAX_FRAMES: Final = 12
_MAX_CAUSES: Final = 4
_SCAN: Final = 32 * 1024

_MAX_WORD: Final = 1000

# Each in linear time: none looks beyond the next place where it could begin
_URL_USER: Final = re.compile(r"(?<=://)[^/\s?#'\"<>]*@")
_URL_QUERY: Final = re.compile(r"(://(?:(?!://)[^\s?#'\"<>])*\?)[^\s#'\"<>]+")
_NAMED_SECRET: Final = re.compile(
    r"(?i)(password|passwd|secret|token|api[_-]?key|authorization)([\"']?\s*[=:]\s*(?:(?:basic|bearer)\s+)?)"
    r"('[^']*'|\"[^\"]*\"|[^\s&,;]+)"
)
# PostgreSQL's DETAIL, CONTEXT and the like repeat the row's values, SQLAlchemy's text the statement and its parameters
_DETAIL: Final = re.compile(r"\n(?=DETAIL:|CONTEXT:|QUERY:|LINE \d+:|\[SQL: |\[parameters: )")
_QUOTED: Final = re.compile(r"(?s)\".*\"")


def failure_text(error: BaseException) -> str:
    """``error`` with its causes and innermost frames, cleaned and cut. Never raises."""
    try:
        return clean("\n".join(_lines(error)))
    except BaseException:
        return FALLBACK


def failure_summary(error: BaseException) -> str:
    """The first line of :func:`failure_text`, for logs."""
    try:
        return clean(_headline(error)).splitlines()[0][:500]
    except BaseException:
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
    """``text`` without the user part and the query of URLs, ``password=...``, ``'token': '...'`` and the like."""
    text = _URL_USER.sub("***@", text)
    text = _URL_QUERY.sub(r"\1***", text)
    return _NAMED_SECRET.sub(r"\1\2***", text)


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
        return _shorten(_words(error), _SCAN)
    except BaseException:
        # Its __str__ is the code of others: it may raise what it likes
        return "(its text cannot be read)"


def _words(error: BaseException) -> str:
    if isinstance(error, StatementError):
        # str() of it repeats the statement and its parameters; the driver's words are enough
        return _words(error.orig) if error.orig else str(error.args[0])
    # psycopg's text has the details under headings in the server's language
    primary = getattr(getattr(error, "diag", None), "message_primary", None)
    text = primary or _DETAIL.split(str(error), maxsplit=1)[0]
    if str(getattr(error, "sqlstate", None)).startswith("22"):
        # A data error quotes the value that it is about
        text = _QUOTED.sub('"***"', text)
    return text


def _shorten(text: str, characters: int) -> str:
    if len(text) <= 2 * characters:
        return text
    # Without the words that are cut: half a secret would not be recognized as one
    head, tail = text[:characters], text[-characters:]
    if cut := re.search(r"\s\S*\Z", head[-_MAX_WORD:]):
        head = head[: cut.start() - _MAX_WORD]
    if cut := re.search(r"\s", tail[:_MAX_WORD]):
        tail = tail[cut.start() :]
    return f"{head}\n[... shortened ...]\n{tail}"
