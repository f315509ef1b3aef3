"""Output: a table for people, aligned text for pipes, JSON for programs.

Text from the database may hold anything, so what would move the cursor or colour the terminal is made visible.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final
from uuid import UUID

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

ERROR_WIDTH: Final = 60
"""How much of an error a list shows."""

_GAP: Final = 2
_LEAST: Final = 8
"""The least width of a column that gives way."""


@dataclass(frozen=True, slots=True)
class Column:
    """``right``: for numbers. ``flexible``: where a terminal is narrow, this one is cut."""

    title: str
    right: bool = False
    flexible: bool = False


def print_json(document: Any) -> None:
    """One JSON document; times in ISO 8601 and UTC."""
    click.echo(json.dumps(document, indent=2, default=_plain))


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> None:
    """A table on a terminal; elsewhere aligned text that never wraps, with one line per row."""
    cells = [[visible(str(value)) for value in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(columns, cells)
    else:
        click.echo("\n".join(_aligned(columns, cells)))


def print_fields(fields: Mapping[str, object]) -> None:
    """Names and values below each other; further lines of a value are indented under its first."""
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        lines = _shown(value).split("\n")
        click.echo(f"{name.ljust(width)}  {visible(lines[0])}".rstrip())
        for line in lines[1:]:
            click.echo(" " * (width + 2) + visible(line))


def visible(text: str) -> str:
    """``text`` on one line, with what cannot be printed as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text)


def first_line(text: str | None, width: int = ERROR_WIDTH) -> str:
    """The beginning of a text, such as an error with its frames."""
    line = (text or "").strip().split("\n", 1)[0]
    return line if len(line) <= width else line[: width - 3] + "..."


def age(span: timedelta) -> str:
    """A length of time in its two largest units, as ``--older-than`` takes it."""
    seconds = max(0, int(span.total_seconds()))
    parts = []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        number, seconds = divmod(seconds, size)
        parts.append((number, unit))
    first = next((index for index, (number, _) in enumerate(parts) if number), len(parts) - 1)
    return "".join(f"{number}{unit}" for number, unit in parts[first : first + 2] if number) or "0s"


def _aligned(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> list[str]:
    lines = [[column.title.upper() for column in columns], *cells]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    return [
        "  ".join(
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in lines
    ]


def _print_rich(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
    console = Console()
    widths = _fitted(columns, cells, console.width)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, _GAP, 0, 0))
    for column, width in zip(columns, widths, strict=True):
        table.add_column(
            column.title, justify="right" if column.right else "left", width=width, no_wrap=True, overflow="ellipsis"
        )
    for row in cells:
        # Text, not str: an error may hold what rich would take for markup
        table.add_row(*(Text(cell) for cell in row))
    # Where that is still too wide, the terminal breaks the lines: an id is there to be copied as a whole
    console.width = max(console.width, sum(widths) + _GAP * len(widths))
    console.print(table)


def _fitted(columns: Sequence[Column], cells: Sequence[Sequence[str]], room: int) -> list[int]:
    """The width of each column: as wide as its widest cell, but flexible ones share what the others leave."""
    widths = [max(len(column.title), *(len(row[index]) for row in cells)) for index, column in enumerate(columns)]
    room -= _GAP * len(columns) + sum(
        width for width, column in zip(widths, columns, strict=True) if not column.flexible
    )
    flexible = sorted((index for index, column in enumerate(columns) if column.flexible), key=widths.__getitem__)
    for done, index in enumerate(flexible):
        widths[index] = min(widths[index], max(_LEAST, room // (len(flexible) - done)))
        room -= widths[index]
    return widths


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds")
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, dict | list):
        return json.dumps(value, default=_plain)
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
