"""``python -m benchmarks``: jobs per second of one worker process, as a ratio to plain psycopg in the same run."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

from rich.console import Console
from rich.table import Table
from sqlalchemy import URL

from benchmarks import drains, floors, server

FLOOR = "psycopg, 100 per statement, 1 connection"

SCENARIOS: dict[str, tuple[Callable[[URL], None], float]] = {
    FLOOR: (partial(floors.drain, batch=100), 1),
    "psycopg, one by one, 10 connections": (partial(floors.drain, batch=1, connections=10), 0.1),
    "worker, plain no-op": (drains.plain, 1),
    "worker, async no-op": (drains.asynchronous, 1),
    "worker, job.session with one insert": (drains.transactional, 0.1),
}
"""Name -> what drains the database, and the part of the jobs it gets (the slow ones take fewer)."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--database-url", help="a server to measure on; by default an embedded one")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=5, help="the median of so many is shown")
    arguments = parser.parse_args()
    with server.server(arguments.database_url) as url:
        show(measure(url, arguments.jobs, arguments.runs), arguments.jobs)


def measure(url: URL, jobs: int, runs: int) -> dict[str, list[float]]:
    """Jobs per second of each scenario; all in turn, several times, so that a busy machine is busy for all."""
    rates: dict[str, list[float]] = {name: [] for name in SCENARIOS}
    for _ in range(runs):
        for name, (drain, part) in SCENARIOS.items():
            with server.database(url) as database:
                count = int(jobs * part)
                server.fill(database, count)
                started = time.perf_counter()
                drain(database)
                rates[name].append(count / (time.perf_counter() - started))
                done = server.count_done(database)
                if done != count:
                    raise SystemExit(f"{name}: {done} of {count} jobs are done")
    return rates


def show(rates: dict[str, list[float]], jobs: int) -> None:
    table = Table(title=f"Drain of {jobs:,} jobs, concurrency 10", title_justify="left")
    for column in ("", "jobs/s, median", "least", "most", "ratio to the first, median of the runs"):
        table.add_column(column, justify="left" if not column else "right")
    for name, values in rates.items():
        ratio = statistics.median(value / floor for value, floor in zip(values, rates[FLOOR], strict=True))
        figures = (f"{figure:,.0f}" for figure in (statistics.median(values), min(values), max(values)))
        table.add_row(name, *figures, f"{ratio:.2f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
