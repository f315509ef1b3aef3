"""jobqueue's Alembic revisions, and the ways to apply them; use one per database.

- Chained in the host's Alembic environment: ``version_locations`` names ``jobqueue:migrations/versions``.
- On their own: ``upgrade(url)``, or ``jobqueue db upgrade``.

The tables never are migrated behind your back: a worker calls ``check`` at its start and says what to do.
"""

from jobqueue.migrations.checks import Problem, check, current, missing_kinds
from jobqueue.migrations.kinds import KindInUse
from jobqueue.migrations.runner import alembic_config, database_url, downgrade, upgrade, upgrade_sql
from jobqueue.migrations.schema import HEAD, SCHEMA, VERSION_TABLE, include_object

__all__ = [
    "HEAD",
    "SCHEMA",
    "VERSION_TABLE",
    "KindInUse",
    "Problem",
    "alembic_config",
    "check",
    "current",
    "database_url",
    "downgrade",
    "include_object",
    "missing_kinds",
    "upgrade",
    "upgrade_sql",
]
