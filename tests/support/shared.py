"""One database for a folder of tests, emptied after each: to clone one takes longer than most of these tests."""

from __future__ import annotations

from sqlalchemy import NullPool, create_engine, text

_EMPTY = """
    DELETE FROM mdm.email_log;
    DELETE FROM mdm.job;
    DELETE FROM mdm.audit_log;
    DELETE FROM mdm.job_worker;
    DELETE FROM mdm.tenant WHERE id <> '00000000-0000-0000-0000-000000000000';
"""


def empty(database_url: str) -> None:
    """Take every row that a test has left; only the system tenant stays."""
    engine = create_engine(database_url, poolclass=NullPool)
    with engine.begin() as connection:
        # A test that left a transaction open fails here, rather than hang
        connection.execute(text("SET LOCAL lock_timeout = '5s'"))
        connection.exec_driver_sql(_EMPTY)
