"""Every code block of the README is run, as a reader would run it."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from jobqueue.settings import Settings

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text()
QUICKSTART = REPOSITORY / "examples" / "quickstart"

BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
SHELL = [text for language, text in BLOCKS if language == "sh"]
TRY_IT, RUN_IT, OPERATE_IT = SHELL


@pytest.mark.parametrize("block", [text for language, text in BLOCKS if language in {"python", "ini"}])
def test_each_file_it_shows_is_the_file_of_the_quickstart(block: str) -> None:
    title, text = block.split("\n", 1)
    assert (QUICKSTART / title.removeprefix("# ")).read_text() == text


def test_every_block_is_a_file_or_a_command() -> None:
    assert {language for language, _ in BLOCKS} == {"sh", "python", "ini"}


def test_ci_runs_the_two_commands_of_a_newcomer() -> None:
    install, suite = TRY_IT.strip().splitlines()
    script = [line.removesuffix(" --quiet") for line in (REPOSITORY / ".ci" / "run").read_text().splitlines()]
    for command in [*install.split(" && "), suite]:
        # CI's virtual environment has another name, so that it cannot be somebody's own
        assert command.replace(".venv", ".ci/venv") in script


def test_the_application_on_one_page_runs(empty_database_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    shutil.copytree(QUICKSTART, folder, ignore=shutil.ignore_patterns("__pycache__"))
    port = str(_free_port())
    script = (
        (RUN_IT + "python api.py\n" + OPERATE_IT + "alembic check\n")
        .replace("postgresql+psycopg://postgres@localhost/shop", f"'{empty_database_url}'")
        .replace("127.0.0.1:1025", f"127.0.0.1:{port}")
    )
    result = subprocess.run(
        ["bash", "-euc", "trap 'kill $(jobs -p)' EXIT\n" + script],
        cwd=folder,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    output = result.stdout + result.stderr
    assert result.returncode == 0, output
    assert "Subject: Your order 1" in output
    assert "[True, False]" in output
    assert "No new upgrade operations detected" in output
    listed = [line.split() for line in output.splitlines() if re.match(r"[0-9a-f-]{36} ", line)]
    assert {"done", "pending"} == {words[2] for words in listed}


def test_the_table_of_settings_is_complete_and_right() -> None:
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| (\S*) +\| ", README, flags=re.MULTILINE))
    wanted = {}
    for name, field in Settings.model_fields.items():
        variable = "DATABASE_URL" if name == "database_url" else f"JOBQUEUE_{name.upper()}"
        default = field.default
        seconds = getattr(default, "total_seconds", None)
        wanted[variable] = "" if default is None else f"{seconds():g}" if seconds else str(default)
    assert rows == wanted


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JOBQUEUE_", "DATABASE_"))}
    return kept | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
