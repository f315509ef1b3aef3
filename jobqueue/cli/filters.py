"""The options that say which jobs are meant."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeVar
from uuid import UUID

import click

from jobqueue import JobFilter, JobStatus
from jobqueue.cli.parameters import AGE, KINDS, flat

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS: Final = [
    click.option(
        "--status",
        "statuses",
        multiple=True,
        type=click.Choice([status.value for status in JobStatus]),
        help="In this status. Repeatable.",
    ),
    click.option("--kind", "kinds", multiple=True, type=KINDS, metavar="KIND,...", help="Of this kind. Repeatable."),
    click.option("--tenant", "tenants", multiple=True, type=click.UUID, help="Of this tenant. Repeatable."),
    click.option("--older-than", type=AGE, help="Created longer ago than this, as in 15m, 2h, 7d."),
    click.option("--error", metavar="TEXT", help="With this text in the last error, in any case of letters."),
]


def filter_options(function: Function) -> Function:
    """Add the options whose values :func:`job_filter` takes."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def job_filter(
    *,
    statuses: tuple[str, ...],
    kinds: tuple[list[str], ...],
    tenants: tuple[UUID, ...],
    older_than: timedelta | None,
    error: str | None,
    limit: int | None = None,
) -> JobFilter:
    """The filter that the options amount to; an option that was not given does not count."""
    return JobFilter(
        statuses=[JobStatus(status) for status in statuses] or None,
        kinds=flat(kinds) or None,
        tenants=tenants or None,
        older_than=older_than,
        error=error,
        limit=limit,
    )
