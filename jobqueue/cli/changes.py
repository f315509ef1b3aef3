"""``jobqueue jobs replay``, ``discard`` and ``cancel``: change jobs, never more than was meant."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final
from uuid import UUID

import click
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from jobqueue import JobFilter, JobStatus
from jobqueue.cli.database import Configuration
from jobqueue.cli.errors import REFUSED
from jobqueue.cli.filters import filter_options, job_filter
from jobqueue.cli.output import print_json
from jobqueue.cli.parameters import current_actor, json_option
from jobqueue.errors import JobNotFound, JobQueueError, TransitionRefused
from jobqueue.operations import cancel, discard, replay
from jobqueue.repository import Changed, Which, queries
from jobqueue.states import DISCARDABLE, Transition, sources


@dataclass(frozen=True, slots=True)
class Verb:
    """A way to change jobs."""

    name: str
    past: str
    statuses: Collection[JobStatus]
    """In which it is possible."""
    run: Callable[..., Changed]
    to_pending: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for: jobs by id, or by a filter, or both."""

    ids: Sequence[UUID]
    filter: JobFilter
    dry_run: bool
    yes: bool
    actor: str
    as_json: bool

    @property
    def filtered(self) -> bool:
        return replace(self.filter, limit=None) != JobFilter()


REPLAY: Final = Verb("replay", "replayed", sources(Transition.REPLAY), replay, to_pending=True)
DISCARD: Final = Verb("discard", "discarded", DISCARDABLE, discard)
CANCEL: Final = Verb("cancel", "cancelled", sources(Transition.CANCEL), cancel)

# A foreign key, without and with RESTRICT
_REFERENCED_STATES: Final = {"23503", "23001"}
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_CHANGE_OPTIONS: Final[list[Callable[[Any], Any]]] = [
    click.argument("ids", metavar="[ID]...", nargs=-1, type=click.UUID),
    filter_options,
    click.option("--limit", type=click.IntRange(min=1), help="At most so many, the oldest first."),
    click.option("--all", "everything", is_flag=True, help="All jobs that can be, where neither IDs nor filters are."),
    click.option("--dry-run", is_flag=True, help="Say what would be touched, and touch nothing."),
    click.option("--yes", "-y", is_flag=True, help="Do not ask, also for more than one job."),
    click.option("--actor", help="Who does it, for the audit log; default cli:USER."),
    json_option,
    click.pass_obj,
]


def _change_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_CHANGE_OPTIONS):
        function = option(function)
    return function


@click.command("replay")
@_change_options
def replay_command(configuration: Configuration, /, **options: Any) -> None:
    """Return failed and dlq jobs to pending, due now, with a fresh budget of attempts."""
    _change(configuration, REPLAY, _request(**options))


@click.command("discard")
@_change_options
def discard_command(configuration: Configuration, /, **options: Any) -> None:
    """Delete failed and dlq jobs for good. The audit log keeps who did it."""
    _change(configuration, DISCARD, _request(**options))


@click.command("cancel")
@_change_options
@click.option("--reason", metavar="TEXT", help="Why; kept as the job's last error.")
def cancel_command(configuration: Configuration, /, reason: str | None, **options: Any) -> None:
    """Stop pending jobs before they run. They end in failed, from where they can be replayed."""
    _change(configuration, replace(CANCEL, run=partial(cancel, reason=reason)), _request(**options))


def _request(
    *,
    ids: Sequence[UUID],
    everything: bool,
    limit: int | None,
    dry_run: bool,
    yes: bool,
    actor: str | None,
    as_json: bool,
    **filters: Any,
) -> Request:
    request = Request(
        list(dict.fromkeys(ids)),
        job_filter(**filters, limit=limit),
        dry_run,
        yes,
        current_actor() if actor is None else actor,
        as_json,
    )
    if ids and (everything or limit is not None):
        raise click.UsageError("IDs say which jobs are meant; leave out --all and --limit")
    if not (ids or request.filtered or everything):
        raise click.UsageError("say which jobs: IDs, or filters such as --status and --kind, or --all")
    return request


def _change(configuration: Configuration, verb: Verb, request: Request) -> None:
    with configuration.session() as session:
        which, refused = _which(session, request)
        if request.dry_run:
            _dry_run(session, verb, request, which, refused)
        else:
            which = _confirmed(session, verb, request, which)
            # No transaction stands open while somebody thinks
            session.rollback()
            with _references_told(verb):
                changed = verb.run(session, which, actor=request.actor)
                session.commit()
            _report(verb, request, changed, refused | changed.refused)


def _which(session: Session, request: Request) -> tuple[list[UUID] | JobFilter, dict[UUID, JobQueueError]]:
    """The jobs that are meant; and of the ids that were named, those that the filter leaves out."""
    if not request.ids:
        return request.filter, {}
    if not request.filtered:
        return list(request.ids), {}
    matching = set(queries.matching_ids(session, request.ids, request.filter))
    existing = queries.existing_ids(session, request.ids)
    return [job_id for job_id in request.ids if job_id in matching], {
        job_id: TransitionRefused(f"job {job_id} does not match the filters given")
        if job_id in existing
        else JobNotFound(job_id)
        for job_id in request.ids
        if job_id not in matching
    }


def _confirmed(session: Session, verb: Verb, request: Request, which: list[UUID] | JobFilter) -> list[UUID] | JobFilter:
    """Ask where more than one job is at stake. Of a filter, no more is taken than was agreed to."""
    if request.yes or (isinstance(which, list) and len(which) <= 1):
        return which
    preview = queries.preview(session, which, verb.statuses)
    session.rollback()
    if preview.total > 1:
        question = f"{verb.name} {_jobs(preview.total)} ({_counts(preview)})?"
        if not sys.stdin.isatty():
            raise click.UsageError(f"{question} nobody is there to answer; repeat with --yes, or see with --dry-run")
        if not click.confirm(question, err=True):
            click.echo("nothing was changed", err=True)
            raise SystemExit(REFUSED)
    return replace(which, limit=max(preview.total, 1)) if isinstance(which, JobFilter) else which


def _dry_run(session: Session, verb: Verb, request: Request, which: Which, refused: dict[UUID, JobQueueError]) -> None:
    preview = queries.preview(session, which, verb.statuses, to_pending=verb.to_pending)
    if not isinstance(which, JobFilter):
        # Done and taken back: the reasons are then those of the real run
        with _references_told(verb):
            refused = refused | verb.run(session, which, actor=request.actor).refused
        session.rollback()
    in_use = preview.keys_in_use
    if request.as_json:
        counts = [asdict(count) for count in preview.counts]
        document = {"count": preview.total, "jobs": counts, "dedup_keys_in_use": in_use}
        print_json(_document(verb, request, refused) | document)
    else:
        would = f"would {verb.name} {_jobs(preview.total)}"
        click.echo(f"{would} ({_counts(preview)})" if preview.total else _nothing(verb))
        if in_use:
            click.echo(f"{in_use} of them would be refused: another job has their dedup_key now", err=True)
    _tell_refused(request, refused)


@contextmanager
def _references_told(verb: Verb) -> Iterator[None]:
    """A foreign key of the application that holds a job fast: say which, and that the other jobs remain too."""
    try:
        yield
    except IntegrityError as error:
        if verb is not DISCARD or getattr(error.orig, "sqlstate", None) not in _REFERENCED_STATES:
            raise
        found: Any = error.orig.diag  # type: ignore[union-attr]  # psycopg's
        held = set(_UUID.findall(found.message_detail or ""))
        job = f"job {held.pop()}" if len(held) == 1 else "one of the jobs"
        raise TransitionRefused(
            f"nothing was {verb.past}: {job} is referenced by {found.schema_name}.{found.table_name} "
            f"(constraint {found.constraint_name}); delete the rows there first, or leave out the job"
        ) from error


def _report(verb: Verb, request: Request, changed: Changed, refused: dict[UUID, JobQueueError]) -> None:
    if request.as_json:
        print_json(_document(verb, request, refused) | {"count": len(changed.ids), "ids": changed.ids})
    elif len(changed.ids) == 1:
        click.echo(f"{verb.past} job {changed.ids[0]}")
    elif changed.ids:
        click.echo(f"{verb.past} {_jobs(len(changed.ids))}")
    elif not refused:
        click.echo(_nothing(verb))
    _tell_refused(request, refused)


def _tell_refused(request: Request, refused: dict[UUID, JobQueueError]) -> None:
    if not request.as_json:
        for reason in refused.values():
            click.echo(f"refused: {reason}", err=True)
    if refused:
        raise SystemExit(REFUSED)


def _document(verb: Verb, request: Request, refused: dict[UUID, JobQueueError]) -> dict[str, Any]:
    reasons = [{"id": job_id, "reason": str(reason)} for job_id, reason in refused.items()]
    return {"action": verb.name, "dry_run": request.dry_run, "refused": reasons}


def _counts(preview: queries.Preview) -> str:
    return ", ".join(f"{count.kind} {count.status.value}: {count.count:,}" for count in preview.counts)


def _nothing(verb: Verb) -> str:
    return f"nothing to {verb.name}: no {' or '.join(sorted(verb.statuses))} job matches"


def _jobs(number: int) -> str:
    return "1 job" if number == 1 else f"{number:,} jobs"
