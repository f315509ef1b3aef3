"""What is kept of a failure: a short text that PostgreSQL stores in any case, without the data of others.

Recording a failure is the one write that must not fail. And the text is read by people who may not see the
payload: bound parameters, rows in error details, and the user part and query of URLs are left out.
"""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from sqlalchemy.exc import StatementError

MAX_BYTES: Final = 4096
"""The longest text that is kept, in bytes of UTF-8. Of a longer one the head and the tail remain."""

FALLBACK: Final = "the failure has no text that could be stored"

_MAX_FRAMES: Final = 12
_INNERMOST: Final = 3
_MAX_CAUSES: Final = 4
_MAX_MEMBERS: Final = 8
_MAX_NOTES: Final = 3
_MAX_ASIDE: Final = 300
_SCAN: Final = 32 * 1024

_MAX_WORD: Final = 1000

# Each in linear time: none looks beyond the next place where it could begin, or further than a fixed number of letters
_URL_PASSWORD: Final = re.compile(
    # A password may hold what belongs escaped, such as a slash. Not so host:port/path of the web, with an @ in its path
    r"(?i)(?<=://)(?:(?<!http://)(?<!https://)[^/:\s?#'\"<>\[]*:|[^/:\s?#'\"<>\[]*:(?!\d{1,5}[^\w@]))"
    r"(?:(?!://)[^\s'\"<>])*@"
)
_URL_USER: Final = re.compile(r"(?<=://)[^/\s?#'\"<>]*@")
_URL_QUERY: Final = re.compile(r"(://(?:(?!://)[^\s?#'\"<>])*\?)[^\s#'\"<>]+")
_QUOTE: Final = r"\\{0,4}[\"']?"
_ASSIGNED: Final = rf"{_QUOTE}\s*[=:]\s*\\{{0,4}}"
_COOKIES: Final = re.compile(rf"(?i)(cookie{_ASSIGNED})[\"']?[^\s=;\"']{{1,200}}=[^\r\n\"']*")
_NAMED_SECRET: Final = re.compile(
    # In longer names too, such as aws_secret_access_key or clientSecretKey, but not a secretary
    r"(?i)((?:pass(?:word|wd|phrase|code)|(?<=_)pass|pwd|secret|(?<!unexpected )token|authorization|credential|cookie"
    r"|(?:api|access|account|private|signing|encryption)[_-]?key)"
    # What is said about a secret is none
    r"(?![_-](?:type|count|length|limit|name|file|path|url|uri|endpoint|expir|ttl))"
    r"(?:[_-][\w-]{0,40}|(?-i:[A-Z])\w{0,40})?)"
    rf"({_ASSIGNED}(?:(?:basic|bearer|digest|token)\s+)?)"
    r"([bru]?'[^']*'|[bru]?\"[^\"]*\"|[^\s&,;]+)"
)
# PostgreSQL's DETAIL, CONTEXT and the like repeat the row's values, SQLAlchemy's text the statement and its parameters
_DETAIL: Final = re.compile(r"\n(?=DETAIL:|CONTEXT:|QUERY:|LINE \d+:|\[SQL: |\[parameters: )")
_QUOTED: Final = re.compile(r"(?s)\".*\"")

_OWN: Final = ""
_PYTHON: Final = ("<frozen ", *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")))
_JOBQUEUE: Final = f"{Path(__file__).parent}/"


def failure_text(error: BaseException) -> str:
    """``error`` with its causes and innermost frames, cleaned and cut. Never raises."""
    try:
        return clean("\n".join(_lines(error)))
    except BaseException:
        return FALLBACK


def failure_summary(error: BaseException) -> str:
    """The first line of :func:`failure_text`, for logs; of a group of exceptions, the first of them too."""
    try:
        first = clean(_headline(error)).splitlines()[0]
        leaf = _first_leaf(error)
        if leaf is not error:
            first = f"{_aside(first)}: {_aside(_headline(leaf))}"
        return clean(first)[:500]
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
    text = _URL_PASSWORD.sub("***@", text)
    text = _URL_USER.sub("***@", text)
    text = _URL_QUERY.sub(r"\1***", text)
    text = _COOKIES.sub(r"\1***", text)
    return _NAMED_SECRET.sub(r"\1\2***", text)


def _lines(error: BaseException) -> Iterator[str]:
    seen: set[int] = set()
    cause: BaseException | None = error
    prefix = ""
    while cause is not None and id(cause) not in seen and len(seen) < _MAX_CAUSES:
        seen.add(id(cause))
        yield prefix + _headline(cause)
        yield from _details(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
        prefix = "caused by "


def _details(error: BaseException) -> Iterator[str]:
    yield from _notes(error)
    yield from _frames(error.__traceback__, _MAX_FRAMES, _INNERMOST)
    if isinstance(error, BaseExceptionGroup):
        yield from _members(error)


def _notes(error: BaseException) -> list[str]:
    """What ``add_note`` added, each on one line."""
    try:
        return [f"  note: {_aside(_DETAIL.split(note, maxsplit=1)[0])}" for note in error.__notes__[:_MAX_NOTES]]
    except BaseException:
        # Mostly there are none; and anybody can set them to what is no list of texts
        return []


def _members(group: BaseExceptionGroup[BaseException]) -> Iterator[str]:
    """The exceptions of a group, those of groups inside it too: what each says, and the place of each."""
    waiting = list(reversed(group.exceptions))
    for _ in range(_MAX_MEMBERS):
        if not waiting:
            return
        error = waiting.pop()
        yield f"  | {_aside(_headline(error))}"
        yield from (f"  | {line}" for line in _notes(error))
        yield from (f"  | {line}" for line in _frames(error.__traceback__, 1, 0))
        if isinstance(error, BaseExceptionGroup):
            waiting += reversed(error.exceptions)
    if waiting:
        yield f"  | and {len(waiting)} more"


def _first_leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _frames(trace: TracebackType | None, most: int, innermost: int) -> Iterator[str]:
    """Where it was raised, innermost first: the ``innermost`` frames, and of the others those that tell most.

    Most of all tells the application's own code; then the places where one library calls another.
    """
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(trace)][::-1]
    origins = [_origin(code.co_filename) for code, _ in frames]
    for index in sorted(sorted(range(len(frames)), key=lambda index: _rank(origins, index, innermost))[:most]):
        code, line = frames[index]
        yield f"  {code.co_filename}:{line} in {code.co_name}"


def _rank(origins: Sequence[str], index: int, innermost: int) -> int:
    if index < innermost:
        return 0
    if origins[index] == _OWN:
        return 1
    return 2 if index == 0 or origins[index] != origins[index - 1] else 3


def _origin(filename: str) -> str:
    """Whose code a file is: a package that was installed, Python, jobqueue, or the application's own."""
    for folder in ("/site-packages/", "/dist-packages/"):
        _, found, path = filename.rpartition(folder)
        if found:
            return path.split("/", 1)[0]
    if filename.startswith(_PYTHON):
        return "python"
    return "jobqueue" if filename.startswith(_JOBQUEUE) else _OWN


def _aside(text: str) -> str:
    """``text`` as a part of one line. What it hides is hidden before it is cut."""
    return " ".join(mask(_shorten(text, _SCAN)).split())[:_MAX_ASIDE]


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
