"""A worker process, started as an operator starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from jobqueue.demo.failure import DemoFailed

HANDLERS: Final = "jobqueue.demo.shop:handlers"
SLOTS: Final = 8

_STOP_SECONDS: Final = 20


class WorkerProcess:
    """``jobqueue worker``, in a process group of its own, so that a Ctrl-C meant for the demo does not reach it."""

    def __init__(self, log: Path, environment: Mapping[str, str]) -> None:
        self._log = log
        command = [sys.executable, "-m", "jobqueue", "worker", HANDLERS, "--concurrency", str(SLOTS)]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def require_alive(self) -> None:
        """:raises DemoFailed: with the last line of its log, if it ended by itself."""
        if self._process.poll() is not None:
            lines = self._log.read_text(errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
            raise DemoFailed(f"the worker ended by itself, with exit code {self._process.returncode}: {last}")

    def kill(self) -> None:
        """SIGKILL: no farewell, no clean-up. Does nothing to a worker that has ended."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def stop(self) -> int:
        """SIGTERM, and its exit code.

        :raises DemoFailed: it did not stop.
        """
        self._process.terminate()
        try:
            return self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"the worker did not stop within {_STOP_SECONDS} s of SIGTERM") from None
