"""Running the command in this process, and as a process of its own, on the test's database."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from jobqueue.cli import cli

Run = Callable[..., Result]
COMMAND = [sys.executable, "-m", "jobqueue"]


@pytest.fixture
def run_anywhere() -> Run:
    """``jobqueue ARGS`` in this process; ``database`` is its DATABASE_URL, by default none."""

    def run(*args: object, database: str | None = None, code: int = 0, stdin: str | None = None) -> Result:
        environment = {"DATABASE_URL": database, "JOBQUEUE_DATABASE_URL": None}
        result = CliRunner().invoke(cli, [str(arg) for arg in args], env=environment, input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture
def run(run_anywhere: Run, database_url: str) -> Run:
    """``jobqueue ARGS`` in this process, on the test's database; fails unless it ends with ``code``."""

    def run(*args: object, **options: Any) -> Result:
        return run_anywhere(*args, **{"database": database_url} | options)

    return run


@pytest.fixture
def run_json(run: Run) -> Callable[..., Any]:
    """The document that ``jobqueue ARGS --json`` prints."""
    return lambda *args, **options: json.loads(run(*args, "--json", **options).stdout)


@pytest.fixture
def process(worker_environment: dict[str, str], tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``python -m jobqueue ARGS`` as a process of its own, in an empty folder."""

    def run(*args: object, **options: Any) -> subprocess.CompletedProcess[str]:
        given = {"cwd": tmp_path, "env": worker_environment, "capture_output": True, "text": True, "timeout": 60}
        return subprocess.run([*COMMAND, *(str(arg) for arg in args)], **given | options)

    return run


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module into the current directory; returns its name, new for each call."""
    monkeypatch.chdir(tmp_path)
    # The command puts the current directory there, for good
    monkeypatch.setattr(sys, "path", list(sys.path))
    names = (f"app_{tmp_path.name.lower()}_{number}" for number in range(100))

    def write(source: str) -> str:
        name = next(names)
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return write
