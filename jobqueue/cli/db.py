"""``jobqueue db``: the schema in the database."""

from __future__ import annotations

from dataclasses import asdict

import click

from jobqueue import __version__, migrations
from jobqueue.cli.database import Configuration, place
from jobqueue.cli.errors import REFUSED
from jobqueue.cli.output import print_json
from jobqueue.cli.parameters import json_option


@click.group("db", no_args_is_help=True)
def db_group() -> None:
    """The tables of jobqueue in the database."""


@db_group.command("upgrade")
@click.option("--sql", is_flag=True, help="Print the SQL for a database without jobqueue, and touch none.")
@click.pass_obj
def upgrade_command(configuration: Configuration, sql: bool) -> None:
    """Create the tables, or bring them to this version.

    For a database whose application has Alembic revisions of its own, chain jobqueue's into them instead.
    """
    if sql:
        click.echo(migrations.upgrade_sql(), nl=False)
        return
    url = configuration.url()
    with configuration.engine() as engine, engine.connect() as connection:
        before = migrations.current(connection)
    migrations.upgrade(url)
    if before is None:
        done = "has jobqueue's tables now, at"
    else:
        done = "was up to date already, at" if before == migrations.HEAD else f"was upgraded from {before} to"
    click.echo(f"{place(url)} {done} {migrations.HEAD}")


@db_group.command("check")
@json_option
@click.pass_obj
def check_command(configuration: Configuration, as_json: bool) -> None:
    """Tell whether the tables fit this version. Exit code 1 if not."""
    with configuration.engine() as engine, engine.connect() as connection:
        problems = migrations.check(connection)
    if as_json:
        print_json([asdict(problem) for problem in problems])
    elif not problems:
        click.echo(f"{place(configuration.url())} fits jobqueue {__version__}")
    else:
        for problem in problems:
            click.echo(f"{problem.problem}: {problem.remedy}")
    if problems:
        raise SystemExit(REFUSED)
