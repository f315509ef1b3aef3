"""``jobqueue enqueue``: write one job."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import click
from sqlalchemy.orm import Session

from jobqueue import Enqueued, enqueue
from jobqueue.cli.database import Configuration
from jobqueue.cli.loading import load_handlers, require_handlers
from jobqueue.cli.output import print_json
from jobqueue.cli.parameters import AGE, HANDLERS, INSTANT, PAYLOAD, current_actor, json_option


@click.command("enqueue", context_settings={"allow_extra_args": True})
@click.argument("kind")
@click.argument("payload", type=PAYLOAD, required=False)
@click.option("--tenant", "tenant_id", type=click.UUID, required=True, help="Whose job it is.")
@click.option("--delay", type=AGE, help="Not before this has passed, as in 10m.")
@click.option("--at", "available_at", type=INSTANT, help="Not before this time, as in 2030-01-31T08:00:00Z.")
@click.option("--priority", type=int, help="Lower is more important; default 100.")
@click.option(
    "--max-attempts",
    type=int,
    help="Default 8; the number the handler was registered with counts only with --handlers.",
)
@click.option("--idempotency-key", help="Write no second job with this key while the first one's row exists.")
@click.option("--dedup-key", help="Write no second job with this key while the first one is pending or running.")
@click.option("--handlers", "handlers_name", type=HANDLERS, help="Check the payload against the handler's type.")
@json_option
@click.pass_context
def enqueue_command(
    context: click.Context,
    /,
    kind: str,
    payload: dict[str, Any] | None,
    tenant_id: UUID,
    delay: timedelta | None,
    available_at: datetime | None,
    handlers_name: tuple[str, str] | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Write a job of KIND. PAYLOAD is a JSON object; "-" reads it from standard input, where others cannot see it.

    Prints the job's id, and whether it was created: a key that is taken is no error.
    """
    if context.args:
        # Click would repeat them
        raise click.UsageError("there are more arguments than KIND and PAYLOAD; quote the JSON: '{\"a\": 1}'")
    if delay is not None and available_at is not None:
        raise click.UsageError("--delay and --at exclude each other; give one of them")
    given = {name: value for name, value in options.items() if value is not None}
    given |= {"delay": delay, "available_at": available_at, "created_by": current_actor()}
    configuration: Configuration = context.obj
    with configuration.session() as session, session.begin():
        enqueued = _enqueue(session, handlers_name, kind, payload, tenant_id, given)
    if as_json:
        print_json(asdict(enqueued))
    else:
        click.echo(f"{enqueued.id} {'created' if enqueued.created else 'exists already'}")


def _enqueue(
    session: Session,
    handlers_name: tuple[str, str] | None,
    kind: str,
    payload: dict[str, Any] | None,
    tenant_id: UUID,
    options: dict[str, Any],
) -> Enqueued:
    if handlers_name is None:
        return enqueue(session, kind, payload, tenant_id=tenant_id, **options)
    handlers = load_handlers(handlers_name)
    require_handlers(handlers, [kind], handlers_name)
    handler = handlers.get(kind)
    assert handler is not None
    return handler.enqueue(session, payload, tenant_id=tenant_id, **options)
