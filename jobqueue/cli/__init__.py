"""The command ``jobqueue``. ``python -m jobqueue`` is the same."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Final

import click

from jobqueue import __version__
from jobqueue.cli.database import Configuration
from jobqueue.cli.db import db_group
from jobqueue.cli.enqueue import enqueue_command
from jobqueue.cli.errors import ReportingGroup
from jobqueue.cli.jobs import jobs_group
from jobqueue.cli.stats import stats_command
from jobqueue.cli.worker import worker_command

__all__ = ["cli", "main"]

_LATER: Final = {"demo": "jobqueue.cli.demo"}
"""Commands whose module is imported when they are named: each holds one click command of the command's name."""


class _Commands(ReportingGroup):
    """The commands, some of them imported late."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        later = (name for name, module in _LATER.items() if importlib.util.find_spec(module))
        return sorted([*super().list_commands(ctx), *later])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _LATER.get(cmd_name)
        if module is None or importlib.util.find_spec(module) is None:
            return super().get_command(ctx, cmd_name)
        command = getattr(importlib.import_module(module), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 fine; 1 done, but something was refused or found; 2 wrong usage; "
    "3 configuration or schema; 4 database not reachable; 130 interrupted.",
)
@click.option(
    "--database-url",
    metavar="URL",
    help="The database; default: JOBQUEUE_DATABASE_URL, else DATABASE_URL. Others on this machine can read the "
    "arguments of a command, so prefer the environment for a URL with a password.",
)
@click.version_option(__version__, prog_name="jobqueue", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context, database_url: str | None) -> None:
    """Background jobs in your own PostgreSQL: work them off, look at them, bring them back."""
    context.obj = Configuration(database_url)


for _command in (db_group, enqueue_command, jobs_group, stats_command, worker_command):
    cli.add_command(_command)


def main() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        # A letter that the terminal's encoding lacks becomes an escape, rather than a traceback
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    cli(prog_name="jobqueue")
