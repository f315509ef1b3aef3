"""What may be written into the columns of a job: one check per column, for the ORM and for ``enqueue`` alike."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from jobqueue.errors import InvalidJob
from jobqueue.payload import check_payload

HORIZON: Final = datetime(3000, 1, 1, tzinfo=UTC)
"""``available_at`` must lie before this; a delay may be as long as ``MAX_ENQUEUE_DELAY``."""

MAX_ENQUEUE_DELAY: Final = timedelta(days=36_525)

MAX_KEY_BYTES: Final = 1024
"""An index entry must fit a page; a longer key is better hashed."""

_KIND: Final = re.compile(r"[a-z][a-z0-9_]*")


def check_column(column: str, value: object) -> Any:
    """Return what is to be stored for ``value`` in ``column``.

    :raises InvalidJob: naming the column, what is wrong with the value, and what it takes.
    """
    check = _CHECKS.get(column)
    return value if check is None else check(column, value)


def check_delay(delay: object) -> timedelta:
    """:raises InvalidJob: unless ``delay`` is a timedelta from 0 to ``MAX_ENQUEUE_DELAY``."""
    if not isinstance(delay, timedelta):
        raise InvalidJob(f"delay must be a datetime.timedelta, got {delay!r}; for seconds pass timedelta(seconds=...)")
    if not timedelta(0) <= delay <= MAX_ENQUEUE_DELAY:
        raise InvalidJob(f"delay must be from 0 to {MAX_ENQUEUE_DELAY.days:,} days, got {delay}")
    return delay


def check_text(name: str, value: object, max_bytes: int = MAX_KEY_BYTES) -> str:
    """:raises InvalidJob: unless ``value`` is text that PostgreSQL can store, neither empty nor too long."""
    if not isinstance(value, str):
        raise InvalidJob(f"{name} must be a str, got {type(value).__name__}; pass str(...)")
    if "\x00" in value:
        raise InvalidJob(f"{name} holds the character NUL (U+0000), which PostgreSQL cannot store; remove it")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidJob(f"{name} holds a lone surrogate, which is no Unicode text; replace or remove it") from None
    if not 1 <= size <= max_bytes:
        raise InvalidJob(f"{name} must have 1 to {max_bytes:,} bytes, got {size:,}; hash a longer one")
    return str(value)


def _optional_text(column: str, value: object) -> str | None:
    return None if value is None else check_text(column, value)


def _kind(column: str, value: object) -> str:
    # A StrEnum member is stored as its label
    kind = check_text(column, value, max_bytes=63)
    if not _KIND.fullmatch(kind):
        raise InvalidJob(f"{column} must be lower case letters, digits and underscores, got {kind!r}")
    return kind


def _tenant(column: str, value: object) -> UUID:
    if isinstance(value, UUID):
        return value
    try:
        return UUID(check_text(column, value))
    except ValueError:
        raise InvalidJob(f"{column} must be a uuid.UUID, got {value!r}") from None


def _payload(column: str, value: object) -> dict[str, Any]:
    return check_payload(value)


def _available_at(column: str, value: object) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidJob(f"{column} must be a datetime, got {type(value).__name__}; for a pause pass delay=")
    if value.utcoffset() is None:
        raise InvalidJob(
            f"{column} has no time zone, so that its instant is unknown; "
            "pass datetime.now(tz=...) or value.replace(tzinfo=...)"
        )
    if not datetime(1970, 1, 1, tzinfo=UTC) <= value < HORIZON:
        raise InvalidJob(f"{column} must lie between 1970 and {HORIZON.year}, got {value}")
    return value


def _integer(low: int, high: int) -> Callable[[str, object], int]:
    def check(column: str, value: object) -> int:
        if type(value) is not int:  # bool is an int, 1.5 would be rounded by the server
            raise InvalidJob(f"{column} must be an int, got {value!r}")
        if not low <= value <= high:
            raise InvalidJob(f"{column} must be from {low:,} to {high:,}, got {value:,}")
        return value

    return check


_CHECKS: Final[dict[str, Callable[[str, object], object]]] = {
    "tenant_id": _tenant,
    "job_kind": _kind,
    "payload": _payload,
    "priority": _integer(-32_768, 32_767),
    "available_at": _available_at,
    "max_attempts": _integer(1, 2_147_483_647),
    "idempotency_key": _optional_text,
    "dedup_key": _optional_text,
    "created_by": _optional_text,
}
