"""What the user sees: colours and a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol

import click
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from jobqueue.demo.ledger import Progress

Show = Callable[[Progress], None]

_INDENT: Final = 3
_MARK_WIDTH: Final = 5
_SECONDS_BETWEEN_LINES: Final = 1.0


class Screen(Protocol):
    """Where the story is told."""

    def title(self, text: str) -> None: ...

    def scene(self, text: str) -> None: ...

    def say(self, text: str) -> None: ...

    def claim(self, text: str, *, holds: bool) -> None: ...

    def commands(self, commands: Sequence[tuple[str, str]]) -> None: ...

    def progress(self, total: int) -> AbstractContextManager[Show]: ...


def screen() -> Screen:
    """The screen that fits standard output."""
    lively = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    return TerminalScreen() if lively else PlainScreen()


class PlainScreen:
    """Lines without control characters, and without a width: for pipes, files and logs."""

    def title(self, text: str) -> None:
        click.echo(text)

    def scene(self, text: str) -> None:
        click.echo(f"\n{text}")

    def say(self, text: str) -> None:
        click.echo(" " * _INDENT + text)

    def claim(self, text: str, *, holds: bool) -> None:
        click.echo(f"{_mark(holds).rjust(_MARK_WIDTH)}  {text}")

    def commands(self, commands: Sequence[tuple[str, str]]) -> None:
        for command, meaning in _aligned(commands):
            click.echo(f"{command}{meaning}")

    @contextmanager
    def progress(self, total: int) -> Iterator[Show]:
        """A line a second, and one at the end."""
        last: Progress | None = None
        printed: Progress | None = None
        printed_at = 0.0

        def show(progress: Progress) -> None:
            nonlocal last, printed, printed_at
            last = progress
            if progress != printed and time.monotonic() - printed_at >= _SECONDS_BETWEEN_LINES:
                self.say(f"{_counts(progress)}   {progress.delivered} of {total} mails delivered")
                printed, printed_at = progress, time.monotonic()

        yield show
        if last is not None:
            printed_at = 0.0
            show(last)


class TerminalScreen:
    """For people who watch."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)

    def title(self, text: str) -> None:
        self._console.print(Text(text, style="bold"))

    def scene(self, text: str) -> None:
        self._console.print()
        self._console.print(Text(text, style="bold cyan"))

    def say(self, text: str) -> None:
        self._console.print(Padding(Text(text), (0, 0, 0, _INDENT)))

    def claim(self, text: str, *, holds: bool) -> None:
        mark = Text(_mark(holds).rjust(_MARK_WIDTH), style="bold green" if holds else "bold red")
        # Beside each other: the text wraps in its own column
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_row(mark, Text(text))
        self._console.print(grid)

    def commands(self, commands: Sequence[tuple[str, str]]) -> None:
        for command, meaning in _aligned(commands):
            # Neither wrapped nor cut: they are there to be copied
            self._console.print(Text(command, style="bold").append(meaning, style="not bold"), soft_wrap=True)

    @contextmanager
    def progress(self, total: int) -> Iterator[Show]:
        bar = Bar(
            TextColumn(" " * (_INDENT - 1)),
            BarColumn(bar_width=20),
            TextColumn("{task.completed}/{task.total} mails"),
            TextColumn("{task.fields[counts]}", style="dim"),
            console=self._console,
        )
        with bar:
            task = bar.add_task("", total=total, counts="")
            yield lambda progress: bar.update(task, completed=progress.delivered, counts=_counts(progress))


def _counts(progress: Progress) -> str:
    return f"pending {progress.pending:>3}  running {progress.running:>2}  done {progress.done:>3}  dlq {progress.dlq}"


def _mark(holds: bool) -> str:
    return "ok" if holds else "WRONG"


def _aligned(commands: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Indented, with the meanings below each other. A command without one may be as long as it likes."""
    width = max((len(command) for command, meaning in commands if meaning), default=0)
    for command, meaning in commands:
        yield " " * (_INDENT + 2) + (command.ljust(width + 2) if meaning else command), meaning
