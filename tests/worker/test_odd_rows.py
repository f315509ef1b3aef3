"""Rows that somebody wrote past jobqueue: whatever is in them, the worker goes on with the others."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy.exc import IntegrityError

from jobqueue import Handlers
from tests.worker.conftest import Bench

UNREADABLE = {
    "a number of more digits than Python reads": "('{\"n\": ' || repeat('9', 5000) || '}')::jsonb",
    "more levels than Python follows": "('{\"n\": ' || repeat('[', 3000) || repeat(']', 3000) || '}')::jsonb",
}


class Typed(BaseModel):
    n: list[Any] = []


def handlers(annotation: type = dict) -> Handlers:
    registry = Handlers()

    def run(payload: Any) -> None:
        pass

    run.__annotations__["payload"] = annotation
    registry.register("reindex")(run)
    return registry


@pytest.mark.parametrize("annotation", [dict, Typed], ids=["dict", "typed"])
@pytest.mark.parametrize("payload", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_payload_that_cannot_be_read_goes_to_dlq_and_the_others_are_done(
    bench: Bench, payload: str, annotation: type
) -> None:
    odd, *others = bench.enqueue_many(4)
    bench.execute(f"UPDATE mdm.job SET payload = {payload} WHERE id = :id", id=odd)
    bench.drain(handlers(annotation))
    assert bench.job_columns(odd, "status::text", "attempts") == ("dlq", 1)
    assert "payload: $" in bench.job_columns(odd, "last_error")[0]
    assert [bench.status(job) for job in others] == ["done"] * 3


def test_attempts_at_the_end_of_their_type_stop_nobody(bench: Bench) -> None:
    odd, *others = bench.enqueue_many(3)
    bench.execute("UPDATE mdm.job SET attempts = 2147483647 WHERE id = :id", id=odd)
    bench.drain(handlers())
    assert bench.status(odd) == "dlq"
    assert [bench.status(job) for job in others] == ["done"] * 2


@pytest.mark.parametrize("time", ["-infinity", "infinity", "20000-01-01 00:00Z", "0044-03-15 00:00Z BC"])
@pytest.mark.parametrize("column", ["available_at", "created_at", "started_at"])
def test_a_time_that_python_cannot_read_is_refused_where_it_is_written(bench: Bench, column: str, time: str) -> None:
    job_id = bench.enqueue()
    with pytest.raises(IntegrityError, match="job_times_chk"):
        bench.execute(f"UPDATE mdm.job SET {column} = '{time}' WHERE id = :id", id=job_id)
    bench.drain(handlers())
    assert bench.status(job_id) == "done"
