"""What plain psycopg does with the same table: the floors that figures are compared with."""

from __future__ import annotations

import threading

import psycopg
from sqlalchemy import URL

CLAIM = """
    WITH picked AS MATERIALIZED (
        SELECT id FROM mdm.job WHERE status = 'pending' AND available_at <= now()
        ORDER BY priority, available_at LIMIT %s FOR UPDATE SKIP LOCKED
    )
    UPDATE mdm.job SET status = 'running', attempts = attempts + 1, claimed_by = 'floor',
        claimed_at = clock_timestamp(), started_at = clock_timestamp()
    FROM picked WHERE job.id = picked.id RETURNING job.id, job.payload
"""
FINISH = """
    UPDATE mdm.job SET status = 'done', completed_at = clock_timestamp()
    WHERE id = ANY(%s) AND status = 'running'
"""


def drain(url: URL, batch: int, connections: int = 1) -> None:
    """Claim and complete ``batch`` jobs per statement, each statement a transaction, until none is left."""
    dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)

    def work() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while ids := [row[0] for row in connection.execute(CLAIM, [batch])]:
                connection.execute(FINISH, [ids])

    threads = [threading.Thread(target=work) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
