"""What the newest revision holds, written out: the migrations do not know the models."""

from __future__ import annotations

from typing import Any, Final

SCHEMA: Final = "mdm"

VERSION_TABLE: Final = "jobqueue_version"
"""Where the revision is recorded when jobqueue is migrated on its own."""

HEAD: Final = "jobqueue_0003"
"""The revision that this version of the code needs."""

COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "tenant": ("id", "name", "created_at"),
    "job": (
        *("id", "tenant_id", "job_kind", "status", "payload", "priority", "available_at", "attempts"),
        *("max_attempts", "last_error", "claimed_by", "claimed_at", "started_at", "completed_at"),
        *("idempotency_key", "dedup_key", "created_at", "created_by"),
    ),
    "job_worker": (
        *("id", "host", "pid", "kinds", "tenants", "concurrency", "hungry", "started_at", "seen_at", "version"),
    ),
    "audit_log": ("id", "tenant_id", "action", "job_id", "actor", "at", "details"),
    "email_log": (
        *("id", "job_id", "tenant_id", "message_id", "sender", "recipients", "outcome", "code", "reply", "at"),
    ),
}
"""The columns of each table, in order."""


def include_object(obj: Any, name: str | None, type_: str, reflected: bool, compare_to: Any) -> bool:
    """Keep a host's autogenerate away from jobqueue's tables.

    Pass it to ``context.configure(include_object=...)``, or call it first in a function of your own. Without it,
    an environment with ``include_schemas=True`` would propose to drop every table that is not in the host's
    metadata.
    """
    ours = {*COLUMNS, VERSION_TABLE}
    return not (type_ == "table" and obj.schema == SCHEMA and name in ours)
