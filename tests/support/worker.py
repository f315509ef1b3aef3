"""Running workers: in this thread until nothing is due, in a thread of the test, or as a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from jobqueue import Handlers, Settings, load_settings
from jobqueue.worker import Worker
from tests.support.waiting import wait_until

_WORKER_OPTIONS = {"kinds", "tenants", "drain"}
_TIMES = {"poll_interval", "poll_interval_max", "stale_after", "timeout", "shutdown_timeout"}


def quick_settings(url: str, **values: Any) -> Settings:
    """Settings for ``url`` with short times; ``values`` go first. Times may be given as seconds."""
    given: dict[str, Any] = {
        "database_url": url,
        "concurrency": 4,
        "poll_interval": 0.02,
        "poll_interval_max": 0.1,
        "shutdown_timeout": 5,
    } | values
    for name in _TIMES & given.keys():
        if not isinstance(given[name], timedelta):
            given[name] = timedelta(seconds=given[name])
    return load_settings(**given)


def make_worker(handlers: Handlers, url: str, **options: Any) -> Worker:
    """``options``: those of ``Worker``, and settings."""
    for_worker = {name: options.pop(name) for name in _WORKER_OPTIONS & options.keys()}
    return Worker(handlers, quick_settings(url, **options), **for_worker)


def drain(handlers: Handlers, url: str, **options: Any) -> None:
    """Run a worker in this thread until nothing is due and nothing runs."""
    make_worker(handlers, url, drain=True, **options).run()


class RunningWorker:
    """A worker in a thread of the test."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="test-worker", daemon=True)
        self._thread.start()

    @property
    def id(self) -> str:
        return self.worker.id

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self, timeout: float = 20) -> None:
        self.worker.stop()
        self.wait(timeout)

    def wait(self, timeout: float = 20) -> None:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"the worker did not end within {timeout} s"
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as error:
            self.error = error


@contextmanager
def running(handlers: Handlers, url: str, **options: Any) -> Iterator[RunningWorker]:
    """A worker that runs as long as the block does."""
    worker = RunningWorker(make_worker(handlers, url, **options))
    try:
        yield worker
    finally:
        worker.stop()


class WorkerProcess:
    """``jobqueue worker app:handlers`` as a process of its own; ``log`` is what it said so far."""

    def __init__(self, folder: Path, environment: Mapping[str, str], *arguments: str) -> None:
        self._log_file = folder / f"worker-{len(list(folder.glob('worker-*.log')))}.log"
        command = [sys.executable, "-X", "dev", "-m", "jobqueue", "worker", "app:handlers", *arguments]
        with self._log_file.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)

    @property
    def log(self) -> str:
        return self._log_file.read_text(errors="replace")

    def wait_for(self, text: str, timeout: float = 30) -> None:
        wait_until(lambda: text in self.log, timeout, what=f"{text!r} in the worker's log")

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def wait(self, timeout: float = 30) -> int:
        """The exit code."""
        return self.process.wait(timeout)


class Workers:
    """Starts processes that work with the module ``app``; ends those that still run."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = dict(environment) | {
            "JOBQUEUE_POLL_INTERVAL": "0.02",
            "JOBQUEUE_POLL_INTERVAL_MAX": "0.1",
            "JOBQUEUE_STALE_AFTER": "1",
            "PYTHONASYNCIODEBUG": "0",
        }
        self._started: list[WorkerProcess] = []

    def write_app(self, source: str) -> None:
        (self._folder / "app.py").write_text(source)

    def start(self, *arguments: str, **settings: object) -> WorkerProcess:
        """``settings`` are environment variables, without their prefix and in small letters."""
        given = {
            ("DATABASE_URL" if n == "database_url" else f"JOBQUEUE_{n.upper()}"): str(settings[n]) for n in settings
        }
        worker = WorkerProcess(self._folder, self._environment | given, *arguments)
        self._started.append(worker)
        return worker

    def close(self) -> None:
        for worker in self._started:
            if worker.process.poll() is None:
                worker.kill()
