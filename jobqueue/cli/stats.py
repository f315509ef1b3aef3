"""``jobqueue stats``: how the queue is doing."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

import click

from jobqueue import JobStatus
from jobqueue.cli.database import Configuration
from jobqueue.cli.output import Column, age, print_json, print_table
from jobqueue.cli.parameters import json_option
from jobqueue.models import WorkerRecord
from jobqueue.repository import queries

_KINDS: Final = [
    Column("kind"),
    Column("pending", right=True),
    Column("due", right=True),
    Column("oldest due", right=True),
    *(Column(status.value, right=True) for status in JobStatus if status is not JobStatus.PENDING),
]

_WORKERS: Final = [
    Column("worker"),
    Column("slots", right=True),
    Column("up", right=True),
    Column("seen", right=True),
    Column("version"),
    Column("tenants", right=True),
    Column("kinds", flexible=True),
]

_WORKER_FIELDS: Final = (
    *("id", "host", "pid", "kinds", "tenants", "concurrency", "hungry", "started_at", "seen_at", "version"),
)


@click.command("stats")
@json_option
@click.pass_obj
def stats_command(configuration: Configuration, as_json: bool) -> None:
    """Count the jobs, and name what needs care.

    Per kind and status; how late the oldest due job is; jobs whose worker is gone; live workers; and kinds
    with pending jobs that no live worker handles.
    """
    stale_after = configuration.settings().stale_after
    with configuration.session() as session:
        stats = queries.stats(session, stale_after=stale_after)
    kinds = _by_kind(stats)
    if as_json:
        print_json(
            {
                "at": stats.at,
                "kinds": list(kinds.values()),
                "stale_running": stats.stale,
                "workers": [{name: getattr(worker, name) for name in _WORKER_FIELDS} for worker in stats.workers],
                "unhandled_kinds": [{"kind": kind, "pending": count} for kind, count in stats.unhandled],
            }
        )
        return
    if kinds:
        print_table(_KINDS, (_kind_row(counts) for counts in kinds.values()))
    else:
        click.echo("no jobs")
    click.echo()
    if stats.workers:
        print_table(_WORKERS, (_worker_row(worker, stats) for worker in stats.workers))
    else:
        click.echo("no live workers")
    for warning in _warnings(stats):
        click.echo(f"\n{warning}")


def _by_kind(stats: queries.Stats) -> dict[str, dict[str, Any]]:
    """One document per kind that has jobs, every status among its keys."""
    kinds: dict[str, dict[str, Any]] = {}
    for count in stats.counts:
        kinds.setdefault(count.kind, _no_jobs(count.kind))[count.status.value] = count.count
    for due in stats.due:
        # A job that came between the two reads is shown the next time
        if due.kind in kinds:
            late = max(stats.at - due.oldest, timedelta(0))
            found = {"due": due.count, "oldest_due_at": due.oldest, "oldest_due_seconds": late.total_seconds()}
            kinds[due.kind] |= found
    return kinds


def _no_jobs(kind: str) -> dict[str, Any]:
    counts: dict[str, Any] = {status.value: 0 for status in JobStatus}
    return {"kind": kind} | counts | {"due": 0, "oldest_due_at": None, "oldest_due_seconds": None}


def _kind_row(counts: dict[str, Any]) -> list[object]:
    return [_cell(column.title, counts) for column in _KINDS]


def _cell(title: str, counts: dict[str, Any]) -> object:
    if title == "oldest due":
        return "-" if counts["oldest_due_at"] is None else age(timedelta(seconds=counts["oldest_due_seconds"]))
    return counts[title]


def _worker_row(worker: WorkerRecord, stats: queries.Stats) -> list[object]:
    return [
        worker.id,
        worker.concurrency,
        age(stats.at - worker.started_at),
        age(stats.at - worker.seen_at),
        worker.version,
        "all" if worker.tenants is None else len(worker.tenants),
        ",".join(worker.kinds),
    ]


def _warnings(stats: queries.Stats) -> Iterable[str]:
    if stats.stale:
        yield f"{stats.stale:,} running jobs are stale: their worker is gone; the next live worker takes them back"
    if len(stats.unhandled) == 1:
        kind, count = stats.unhandled[0]
        yield f"no live worker handles {kind}: {count:,} pending; start a worker that has a handler for it"
    elif stats.unhandled:
        kinds = "".join(f"\n  {kind}: {count:,} pending" for kind, count in stats.unhandled)
        yield f"no live worker handles these kinds; start one that has handlers for them{kinds}"
