"""``op.add_job_kind`` and ``op.drop_job_kind``: how an Alembic revision extends the enum ``mdm.job_kind``.

Importing this module registers both. A revision of the application then reads::

    from alembic import op

    import jobqueue.migrations.kinds  # registers op.add_job_kind


    def upgrade() -> None:
        op.add_job_kind("invoice_pdf")


    def downgrade() -> None:
        op.drop_job_kind("invoice_pdf")

A new kind can be used from the commit on, not before: configure the environment with
``transaction_per_migration=True``.
"""

from __future__ import annotations

import re
from typing import Any, Final

from alembic.operations import MigrateOperation, Operations
from sqlalchemy import Connection, text

from jobqueue.errors import InvalidJob, JobQueueError

MAX_BYTES: Final = 63
"""What PostgreSQL keeps of an enum's label."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")


class KindInUse(JobQueueError):
    """A kind cannot be dropped while jobs have it. Let them end, discard or delete them, then drop it again.

    ``counts`` holds the number of jobs per status.
    """

    def __init__(self, kind: str, counts: dict[str, int]) -> None:
        self.kind = kind
        self.counts = counts
        jobs = ", ".join(f"{count:,} {status}" for status, count in counts.items())
        super().__init__(
            f"job kind {kind!r} is in use and was not dropped: {jobs}; let these jobs end or cancel them, "
            "discard what failed (`jobqueue jobs discard`), DELETE what is done, and drop the kind again"
        )


def check_kind(name: str) -> str:
    """Return ``name``, which thereby is safe to be written into SQL.

    :raises InvalidJob: unless it is a label that ``Job.job_kind`` accepts.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > MAX_BYTES:
        raise InvalidJob(
            f"a job kind must be 1 to {MAX_BYTES} lower case letters, digits and underscores, "
            f"a letter first; got {name!r}"
        )
    return str(name)


@Operations.register_operation("add_job_kind")
class AddJobKind(MigrateOperation):
    """Add a label at the end of ``mdm.job_kind``."""

    def __init__(self, name: str) -> None:
        self.name = check_kind(name)

    @classmethod
    def add_job_kind(cls, operations: Operations, name: str) -> None:
        """Add the kind ``name``; nothing happens if it is there already.

        :raises InvalidJob: if it cannot be the name of a kind.
        """
        operations.invoke(cls(name))

    def reverse(self) -> DropJobKind:
        return DropJobKind(self.name)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        return ("add_job_kind", self.name)


@Operations.register_operation("drop_job_kind")
class DropJobKind(MigrateOperation):
    """Rebuild ``mdm.job_kind`` without a label: PostgreSQL cannot remove one."""

    def __init__(self, name: str) -> None:
        self.name = check_kind(name)

    @classmethod
    def drop_job_kind(cls, operations: Operations, name: str) -> None:
        """Drop the kind ``name``; nothing happens if it is not there.

        Every table with a column of the type is rewritten under an exclusive lock. Waits for each lock for
        as long as ``lock_timeout`` says, 5 s where it is not set. Views on such a column have to be dropped by
        the revision before, and privileges on the type granted again afterwards.

        :raises InvalidJob: if it cannot be the name of a kind.
        :raises KindInUse: while jobs of this kind exist.
        """
        operations.invoke(cls(name))

    def reverse(self) -> AddJobKind:
        return AddJobKind(self.name)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        return ("drop_job_kind", self.name)


@Operations.implementation_for(AddJobKind)
def _add_job_kind(operations: Operations, operation: AddJobKind) -> None:
    # Allowed within a transaction since PostgreSQL 12
    operations.execute(f"ALTER TYPE mdm.job_kind ADD VALUE IF NOT EXISTS '{operation.name}'")


@Operations.implementation_for(DropJobKind)
def _drop_job_kind(operations: Operations, operation: DropJobKind) -> None:
    operations.execute(_LIMIT_LOCK_WAIT)
    operations.execute("LOCK TABLE mdm.job IN ACCESS EXCLUSIVE MODE")
    if not operations.get_context().as_sql:
        _refuse_while_used(operations.get_bind(), operation.name)
    operations.execute(_REBUILD.replace("<kind>", operation.name))


def _refuse_while_used(connection: Connection, kind: str) -> None:
    rows = connection.execute(_COUNT_USES, {"kind": kind})
    counts = {status: int(count) for status, count in rows}
    if counts:
        raise KindInUse(kind, counts)


_LIMIT_LOCK_WAIT: Final = "SELECT set_config('lock_timeout', '5s', true) WHERE current_setting('lock_timeout') = '0'"

# Compared as text: the label may be none of the enum's
_COUNT_USES: Final = text(
    "SELECT status::text, count(*) FROM mdm.job WHERE job_kind::text = :kind GROUP BY status ORDER BY job.status"
)

# One block for both modes: offline, neither labels nor columns are known. It refuses by itself too, for offline;
# rows of other tables are guarded by the cast, which fails on a label that is gone.
#
# An index or a constraint that names the type in an expression ("job_kind = 'x'::mdm.job_kind") is built anew:
# ALTER COLUMN would compare the new type with the old one. All others are carried over by ALTER COLUMN itself.
# No percent sign in here: psycopg's dialect would double it in offline mode.
_REBUILD: Final = """
DO $rebuild$
DECLARE
    old_types oid[];
    labels text;
    uses text;
    restore text[] := '{}';
    found record;
BEGIN
    SELECT ARRAY[t.oid, t.typarray] INTO STRICT old_types FROM pg_type t WHERE t.oid = 'mdm.job_kind'::regtype;
    IF NOT EXISTS (SELECT FROM pg_enum WHERE enumtypid = old_types[1] AND enumlabel = '<kind>') THEN
        RETURN;
    END IF;
    SELECT string_agg(n || ' ' || status, ', ' ORDER BY status) INTO uses
      FROM (SELECT status, count(*) AS n FROM mdm.job WHERE job_kind::text = '<kind>' GROUP BY status) AS used;
    IF uses IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'object_in_use',
            MESSAGE = 'job kind "<kind>" is in use and was not dropped: ' || uses,
            HINT = 'Let these jobs end or cancel them, delete them, and drop the kind again.';
    END IF;
    SELECT coalesce(string_agg(quote_literal(enumlabel), ', ' ORDER BY enumsortorder), '') INTO labels
      FROM pg_enum WHERE enumtypid = old_types[1] AND enumlabel <> '<kind>';

    FOR found IN
        SELECT DISTINCT c.conrelid::regclass::text AS owner, quote_ident(c.conname) AS name,
               pg_get_constraintdef(c.oid) AS definition
          FROM pg_constraint c JOIN pg_depend d ON d.classid = 'pg_constraint'::regclass AND d.objid = c.oid
         WHERE d.refclassid = 'pg_type'::regclass AND d.refobjid = ANY (old_types)
           AND c.conrelid <> 0 AND c.coninhcount = 0
    LOOP
        EXECUTE 'ALTER TABLE ' || found.owner || ' DROP CONSTRAINT ' || found.name;
        restore := restore
            || ('ALTER TABLE ' || found.owner || ' ADD CONSTRAINT ' || found.name || ' ' || found.definition);
    END LOOP;
    FOR found IN
        SELECT DISTINCT i.oid::regclass::text AS name,
               replace(pg_get_indexdef(i.oid), ' ON ONLY ', ' ON ') AS definition
          FROM pg_class i JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = i.oid
         WHERE d.refclassid = 'pg_type'::regclass AND d.refobjid = ANY (old_types)
           AND i.relkind IN ('i', 'I') AND NOT i.relispartition
    LOOP
        EXECUTE 'DROP INDEX ' || found.name;
        restore := restore || found.definition;
    END LOOP;
    FOR found IN
        SELECT a.attrelid::regclass::text AS owner, quote_ident(a.attname) AS name,
               pg_get_expr(f.adbin, f.adrelid) AS definition
          FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p')
          JOIN pg_attrdef f ON f.adrelid = a.attrelid AND f.adnum = a.attnum
         WHERE a.atttypid = ANY (old_types) AND NOT a.attisdropped AND a.attgenerated = ''
    LOOP
        EXECUTE 'ALTER TABLE ONLY ' || found.owner || ' ALTER COLUMN ' || found.name || ' DROP DEFAULT';
        restore := ('ALTER TABLE ONLY ' || found.owner || ' ALTER COLUMN ' || found.name
            || ' SET DEFAULT ' || found.definition) || restore;
    END LOOP;

    ALTER TYPE mdm.job_kind RENAME TO job_kind_before_drop;
    EXECUTE 'CREATE TYPE mdm.job_kind AS ENUM (' || labels || ')';
    FOR found IN
        SELECT a.attrelid::regclass::text AS owner, quote_ident(a.attname) AS name,
               CASE WHEN a.atttypid = old_types[2] THEN '[]' ELSE '' END AS dimensions
          FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p')
         WHERE a.atttypid = ANY (old_types) AND NOT a.attisdropped AND a.attinhcount = 0
    LOOP
        EXECUTE 'ALTER TABLE ' || found.owner || ' ALTER COLUMN ' || found.name
            || ' TYPE mdm.job_kind' || found.dimensions
            || ' USING ' || found.name || '::text' || found.dimensions || '::mdm.job_kind' || found.dimensions;
    END LOOP;
    DROP TYPE mdm.job_kind_before_drop;

    FOR position IN 1 .. cardinality(restore) LOOP
        EXECUTE restore[position];
    END LOOP;
END
$rebuild$
"""
