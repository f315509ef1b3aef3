"""The declarative base of jobqueue's tables, and the two enum types."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Dialect, MetaData, event
from sqlalchemy.dialects.postgresql import ENUM
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.schema import CreateSchema

from jobqueue.states import JobKind, JobStatus

SCHEMA: Final = "mdm"


class Base(DeclarativeBase):
    """Base of jobqueue's own tables. An application keeps its own Base; one session flushes both."""

    metadata = MetaData(schema=SCHEMA)


event.listen(Base.metadata, "before_create", CreateSchema(SCHEMA, if_not_exists=True))


class JobKindType(ENUM):
    """``mdm.job_kind``, read and written as ``str``.

    Open, unlike SQLAlchemy's own Enum, which raises LookupError on a label that it does not know: the enum
    grows by revision, and yesterday's code must be able to read today's rows.
    """

    cache_ok = True

    def __init__(self, *labels: str, **options: Any) -> None:
        # SQLAlchemy copies types by calling __init__ with what it read from their attributes
        given: dict[str, Any] = {"name": "job_kind", "schema": SCHEMA, "metadata": Base.metadata} | options
        super().__init__(*(labels or (kind.value for kind in JobKind)), **given)

    def bind_processor(self, dialect: Dialect) -> None:
        return None

    def result_processor(self, dialect: Dialect, coltype: object) -> None:
        return None

    def literal_processor(self, dialect: Dialect) -> Any:
        return lambda value: "'" + str(value).replace("'", "''") + "'"


job_status_type: Final = ENUM(
    JobStatus,
    name="job_status",
    schema=SCHEMA,
    metadata=Base.metadata,
    values_callable=lambda statuses: [status.value for status in statuses],
)
