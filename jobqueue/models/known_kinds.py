"""Which kinds the database knows: asked once per engine, and again for a kind that was not there."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from jobqueue.errors import UnknownKind
from jobqueue.models.job import BOUND, Job

_known: WeakKeyDictionary[Engine, frozenset[str]] = WeakKeyDictionary()


def require_kinds(session: Session, kinds: Collection[str]) -> None:
    """Refuse kinds that the enum lacks before PostgreSQL does, which would abort the caller's transaction.

    :raises UnknownKind: naming those that are missing.
    """
    wanted = frozenset(kinds)
    engine = session.get_bind(Job).engine
    if not wanted <= _known.get(engine, frozenset()):
        _known[engine] = frozenset(session.scalars(_LABELS, bind_arguments=BOUND))
        if missing := wanted - _known[engine]:
            raise UnknownKind(sorted(missing))


_LABELS: Final = text(
    "SELECT enumlabel::text FROM pg_enum JOIN pg_type ON pg_type.oid = enumtypid "
    "WHERE typname = 'job_kind' AND typnamespace = 'mdm'::regnamespace"
)
