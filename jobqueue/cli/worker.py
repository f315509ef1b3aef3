"""``jobqueue worker``: work jobs off."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Final
from uuid import UUID

import click

from jobqueue.cli.database import Configuration
from jobqueue.cli.loading import load_handlers, require_handlers
from jobqueue.cli.parameters import HANDLERS, KINDS, flat

logger = logging.getLogger("jobqueue.worker")

_EXIT_SECONDS: Final = 0.5
_LEVELS: Final = ["debug", "info", "warning", "error"]


@click.command("worker")
@click.argument("handlers_name", metavar="MODULE:HANDLERS", type=HANDLERS)
@click.option("--concurrency", type=click.IntRange(1, 1000), help="Attempts that run at once; default 10.")
@click.option("--kinds", multiple=True, type=KINDS, metavar="KIND,...", help="Only these kinds. Repeatable.")
@click.option("--tenant", "tenants", multiple=True, type=click.UUID, help="Only jobs of this tenant. Repeatable.")
@click.option("--drain", is_flag=True, help="Stop when nothing is due, rather than wait for more.")
@click.option("--log-level", type=click.Choice(_LEVELS, case_sensitive=False), help="On stderr; default info.")
@click.pass_obj
def worker_command(
    configuration: Configuration,
    handlers_name: tuple[str, str],
    concurrency: int | None,
    kinds: tuple[list[str], ...],
    tenants: tuple[UUID, ...],
    drain: bool,
    log_level: str | None,
) -> None:
    """Work jobs off.

    MODULE:HANDLERS names a registry of handlers, such as myapp.jobs:handlers. The worker runs until SIGTERM or
    SIGINT: then it takes no more jobs and waits for those that run, for a while. A second signal ends it at once.
    """
    configuration.url()
    settings = configuration.settings(concurrency=concurrency)
    handlers = load_handlers(handlers_name)
    wanted = flat(kinds)
    require_handlers(handlers, wanted, handlers_name)
    configure_logging(log_level)

    from jobqueue.worker import Worker

    Worker(handlers, settings, kinds=wanted or None, tenants=list(tenants) or None, drain=drain).run()
    _limit_exit()


def _limit_exit() -> None:
    """See to it that the process is gone soon, whatever threads handlers have left running.

    At its exit Python waits for some of them, such as that of an ``asyncio.to_thread`` which hangs; a supervisor's
    patience is shorter. What exits well in this time runs its ``atexit`` functions as usual.
    """

    def end() -> None:
        time.sleep(_EXIT_SECONDS)
        logger.warning("threads that handlers have left running are left behind")
        os._exit(0)

    if threading.active_count() > 1:
        threading.Thread(target=end, daemon=True).start()


class _Formatter(logging.Formatter):
    """Lines in UTC; what a handler logs through ``job.logger`` says which job it is about."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", datefmt="%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        return super().formatMessage(record) + _job(record)


def _job(record: logging.LogRecord) -> str:
    """The job of a record that has one. Others may set ``job_id`` too, and not the rest."""
    fields = vars(record)
    if fields.get("job_id") is None:
        return ""
    kind = f" {fields['job_kind']}" if "job_kind" in fields else ""
    attempt = f", attempt {fields['attempt']}" if "attempt" in fields else ""
    return f" [job {fields['job_id']}{kind}{attempt}]"


def configure_logging(level: str | None) -> None:
    """Log to stderr, unless the application's module has configured logging itself; a given level counts anyhow."""
    if not logging.getLogger().handlers:
        stream = logging.StreamHandler()
        stream.setFormatter(_Formatter())
        logging.basicConfig(handlers=[stream], level=(level or "info").upper())
    if level is not None:
        logging.getLogger("jobqueue").setLevel(level.upper())
