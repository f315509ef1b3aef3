"""Whether a database's schema is the one that this version of the code needs. Reads, changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from jobqueue.migrations.runner import alembic_config
from jobqueue.migrations.schema import COLUMNS, HEAD, SCHEMA, VERSION_TABLE
from jobqueue.states import JobKind

UPGRADE: Final = (
    "run `jobqueue db upgrade`, or `alembic upgrade heads` where the application's Alembic environment "
    "includes jobqueue's revisions"
)


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with the schema, and the command that mends it; one line each."""

    problem: str
    remedy: str


def check(connection: Connection) -> list[Problem]:
    """Compare the database with what this version of jobqueue needs; an empty list means that all is well.

    A revision that this version does not know yet is no problem by itself: during a rolling deploy, yesterday's
    code runs on tomorrow's schema. What counts then is that the tables, columns and kinds are there.
    """
    revision = current(connection)
    present = _present_columns(connection)
    if revision is None and not present:
        return [Problem(f"the database has no tables of jobqueue (schema {SCHEMA!r})", UPGRADE)]
    if revision != HEAD and revision in _known_revisions():
        return [Problem(f"the database is at revision {revision}, this version needs {HEAD}", UPGRADE)]
    return [*_missing_tables(present), *_missing_bundled_kinds(connection, revision)]


def current(connection: Connection) -> str | None:
    """The revision recorded in the database: in our own version table, or in the one of the host.

    None where nothing is recorded, or where the host has a later revision of its own on top of ours.
    """
    for table in connection.scalars(_VERSION_TABLES, {"ours": f"{SCHEMA}.{VERSION_TABLE}"}).all():
        # The name comes quoted from the catalog
        recorded = connection.scalars(
            text(f"SELECT version_num FROM {table} WHERE version_num LIKE 'jobqueue\\_%'")  # noqa: S608
        ).first()
        if recorded is not None:
            return str(recorded)
    return None


def missing_kinds(connection: Connection, kinds: Iterable[str]) -> list[str]:
    """Those of ``kinds`` that the enum ``mdm.job_kind`` lacks, in the order given."""
    known = set(connection.scalars(_LABELS))
    return [str(kind) for kind in kinds if kind not in known]


def _known_revisions() -> set[str]:
    script = ScriptDirectory.from_config(alembic_config())
    return {revision.revision for revision in script.walk_revisions()}


def _present_columns(connection: Connection) -> dict[str, set[str]]:
    present: dict[str, set[str]] = {}
    for table, column in connection.execute(_COLUMNS, {"schema": SCHEMA, "tables": list(COLUMNS)}):
        present.setdefault(table, set()).add(column)
    return present


def _missing_tables(present: dict[str, set[str]]) -> Iterator[Problem]:
    for table, columns in COLUMNS.items():
        missing = [column for column in columns if column not in present.get(table, ())]
        if table not in present:
            yield Problem(f"the table {SCHEMA}.{table} is missing", UPGRADE)
        elif missing:
            yield Problem(f"the table {SCHEMA}.{table} lacks the columns {', '.join(missing)}", UPGRADE)


def _missing_bundled_kinds(connection: Connection, revision: str | None) -> Iterator[Problem]:
    missing = missing_kinds(connection, JobKind)
    if missing:
        calls = "; ".join(f'op.add_job_kind("{kind}")' for kind in missing)
        dropped = f"write an Alembic revision whose upgrade() calls {calls}, and apply it"
        yield Problem(
            f"the enum {SCHEMA}.job_kind lacks the kinds {', '.join(missing)}", dropped if revision else UPGRADE
        )


# Our own first; the host's version table has to keep Alembic's name to be found
_VERSION_TABLES: Final = text(
    """
    SELECT c.oid::regclass::text
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind = 'r' AND (c.oid = to_regclass(:ours) OR c.relname = 'alembic_version')
       AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
     ORDER BY c.relname = 'alembic_version', n.nspname
    """
)

_COLUMNS: Final = text(
    """
    SELECT c.relname, a.attname
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
      JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
     WHERE n.nspname = :schema AND c.relname = ANY (:tables)
    """
)

_LABELS: Final = text("SELECT enumlabel FROM pg_enum WHERE enumtypid = to_regtype('mdm.job_kind')")
