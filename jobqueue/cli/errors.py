"""Errors as the command line shows them: one line with the remedy, and an exit code that means something."""

from __future__ import annotations

import os
import re
import sys
from typing import Any, Final, NoReturn

import click
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from jobqueue.cli.database import Configuration, driver_problem, place, without_password
from jobqueue.errors import (
    DatabaseUnavailable,
    HandlerError,
    InvalidJob,
    JobQueueError,
    SchemaOutOfDate,
    SettingsError,
    UnknownKind,
)
from jobqueue.failure import clean, mask
from jobqueue.migrations import check

REFUSED: Final = 1
"""Done, but something was refused or found."""

USAGE: Final = 2
CONFIGURATION: Final = 3
UNREACHABLE: Final = 4
INTERRUPTED: Final = 130
READER_GONE: Final = 141
"""As a process ends that SIGPIPE kills: whoever read the output closed it."""

# The first that fits counts
_CODES: Final[list[tuple[type[JobQueueError], int]]] = [
    (SettingsError, CONFIGURATION),
    (SchemaOutOfDate, CONFIGURATION),
    (HandlerError, CONFIGURATION),
    (UnknownKind, CONFIGURATION),
    (InvalidJob, USAGE),
    (JobQueueError, REFUSED),
]

# A table, column, schema, type or function that is not there
_SCHEMA_STATES: Final = {"42P01", "42703", "3F000", "42704", "42883"}


class ReportingGroup(click.Group):
    """A group whose commands end in one line where they would end in a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            # Click repeats what was typed; that may be a URL which ended up in the wrong place
            text = error.format_message()
            if mask(text) == text:
                raise
            raise click.UsageError(mask(text), error.ctx) from None
        except DatabaseUnavailable as error:
            # SQLAlchemy hides the password of a URL's user part, not the one in its query
            _end(mask(str(error)), UNREACHABLE)
        except JobQueueError as error:
            _end(str(error), exit_code_of(error))
        except DBAPIError as error:
            _end(*_explained(error, ctx.obj))
        except ImportError:
            problem = driver_problem()
            if problem is None:
                raise
            _end(problem, CONFIGURATION)
        except (KeyboardInterrupt, click.Abort):
            _end("interrupted", INTERRUPTED)
        except BrokenPipeError:
            _reader_gone()


def exit_code_of(error: JobQueueError) -> int:
    """The exit code that tells a script what kind of error this is."""
    return next(code for kind, code in _CODES if isinstance(error, kind))


def _end(message: str, exit_code: int) -> NoReturn:
    click.echo(f"Error: {' '.join(message.split())}", err=True)
    raise SystemExit(exit_code)


def _explained(error: DBAPIError, configuration: Configuration) -> tuple[str, int]:
    """What went wrong with the database, and the exit code."""
    url = configuration.url()
    words = without_password(_words(error), url)
    state = getattr(error.orig, "sqlstate", None)
    if state in _SCHEMA_STATES:
        return _schema_problems(configuration) or f"{place(url)} refused: {words}", CONFIGURATION
    if not isinstance(error, OperationalError | InterfaceError) and state:
        code = CONFIGURATION if state.startswith("42") else REFUSED
        return f"{place(url)} refused: {words}", code
    if state is None:
        remedy = "check DATABASE_URL, and that the server runs and lets you in"
        return f"{place(url)} cannot be reached: {words}; {remedy}", UNREACHABLE
    return f"{place(url)} gave up: {words}; try again", UNREACHABLE


def _words(error: DBAPIError) -> str:
    """What the driver said, without DETAIL and CONTEXT: they repeat the values of rows."""
    text = re.split(r"\n(?=DETAIL:|CONTEXT:|LINE \d+:)", str(error.orig), maxsplit=1)[0]
    return " ".join(clean(text, 600).split())


def _schema_problems(configuration: Configuration) -> str:
    """Why a statement did not find what it needs, if that is because of the schema."""
    with configuration.engine() as engine, engine.connect() as connection:
        return "; ".join(f"{problem.problem}: {problem.remedy}" for problem in check(connection))


def _reader_gone() -> NoReturn:
    """End quietly: also when Python flushes stdout on its way out."""
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(READER_GONE)
