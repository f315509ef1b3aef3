"""``jobqueue demo``: what it tells, that it holds itself to it, and that nothing is left of it however it ends."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import psutil
import pytest
from uuid_utils.compat import uuid7

from jobqueue.demo import cast
from jobqueue.demo.claims import Claims
from jobqueue.demo.interruptions import Interruptions
from jobqueue.demo.ledger import JobFacts, Ledger, Loss
from jobqueue.demo.mailserver import CLOSED, Mail
from jobqueue.demo.screen import PlainScreen, TerminalScreen
from jobqueue.demo.shop import key_of
from jobqueue.states import JobStatus
from tests.cli.conftest import COMMAND
from tests.conftest import REPOSITORY
from tests.support.waiting import wait_until


class Demo:
    """A run of the demo, whose temporary files go where the test can look."""

    def __init__(self, temporary: Path, *args: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("JOBQUEUE_", "DATABASE_"))}
        own = {"TMPDIR": str(temporary), "PYTHONPATH": str(REPOSITORY)}
        # What a user may have set for other purposes
        strange = {"JOBQUEUE_STALE_AFTER": "soon", "PGPORT": "1", "PGSERVICE": "none", "LC_ALL": "xx_YY.UTF-8"}
        self.output = ""
        self._temporary = temporary
        self._process = subprocess.Popen(
            [*COMMAND, "demo", *args],
            env=kept | own | strange,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def read_until(self, words: str) -> None:
        """Read its output up to the line with these words."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.output += line
            if words in line:
                return
        raise AssertionError(f"{words!r} was not told: {self.output}")

    def signal(self, number: int) -> None:
        """As a terminal does: to the demo, and to the children in its process group."""
        os.killpg(self._process.pid, number)

    def end(self) -> tuple[int, str]:
        """Its exit code, and its errors."""
        rest, errors = self._process.communicate(timeout=100)
        self.output += rest
        return self._process.returncode, errors

    def assert_nothing_is_left(self) -> None:
        wait_until(lambda: not self.processes(), what="every process of the demo to end")
        assert list(self._temporary.iterdir()) == []

    def clean_up(self) -> None:
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()
        self._process.kill()
        self._process.communicate()

    def processes(self) -> list[psutil.Process]:
        """The demo's own processes: workers by their environment, database servers by their command line."""
        return [process for process in psutil.process_iter() if self._started(process)]

    def _started(self, process: psutil.Process) -> bool:
        with suppress(psutil.Error):
            marks = [process.environ().get("TMPDIR", ""), *process.cmdline()]
            alive = process.status() != psutil.STATUS_ZOMBIE and process.pid != self._process.pid
            return alive and any(str(self._temporary) in mark for mark in marks)
        return False


@pytest.fixture
def run_demo() -> Iterator[Callable[..., Demo]]:
    """Starts the demo; not in pytest's folder, whose name is too long for a socket."""
    temporary = Path(tempfile.mkdtemp(prefix="jqdemo-")).resolve()
    demos: list[Demo] = []

    def run(*args: str) -> Demo:
        demos.append(Demo(temporary, *args))
        return demos[-1]

    yield run
    for demo in demos:
        demo.clean_up()
    shutil.rmtree(temporary, ignore_errors=True)


@pytest.mark.slow
def test_the_demo_tells_what_it_did_and_leaves_nothing(run_demo):
    demo = run_demo()
    assert demo.end() == (0, "")
    told = demo.output
    assert "WRONG" not in told
    assert "300 orders and 300 jobs are committed" in told
    assert "Order 301, rolled back, left nothing." in told
    killed = re.search(r"SIGKILL\. (\d+) jobs are done, (\d+) were running, (\d+) are still pending", told)
    assert killed is not None
    done, running, pending = map(int, killed.groups())
    assert done >= cast.ORDERS / 3
    assert running
    assert pending
    assert f"held {running} jobs. The other one recovered and finished {running} of them." in told
    assert '12 recipients got "450 4.2.0 Greylisted, please try again later" at first' in told
    assert f"words: not delivered: {cast.CLOSED}: {CLOSED}" in told
    assert "who replayed it: demo:postmaster." in told
    assert "Of 300 orders, 300 have their mail delivered. 300 jobs done, 0 left behind." in told
    assert "jobqueue jobs list --status dlq" in told
    assert "\x1b" not in told
    assert "password" not in told
    demo.assert_nothing_is_left()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "number", "code", "errors"),
    [
        ("1. A database", signal.SIGINT, 130, "Error: interrupted\n"),
        ("2. 5 tenants", signal.SIGTERM, 143, ""),
        ("It sends 8 mails at once", signal.SIGINT, 130, "Error: interrupted\n"),
        ("Another worker takes over", signal.SIGHUP, 129, ""),
    ],
)
def test_a_demo_that_is_interrupted_leaves_nothing(run_demo, words, number, code, errors):
    demo = run_demo()
    demo.read_until(words)
    demo.signal(number)
    assert demo.end() == (code, errors)
    demo.assert_nothing_is_left()


@pytest.mark.slow
def test_keep_leaves_the_database_until_it_is_ended_as_told(run_demo, run_anywhere):
    demo = run_demo("--keep")
    demo.read_until("300 orders and 300 jobs")
    demo.signal(signal.SIGINT)
    assert demo.end() == (130, "Error: interrupted\n")
    url = re.search(r'export DATABASE_URL="(.*)"', demo.output)
    ending = re.search(r"(kill -INT \d+) .*\n +(rm -r \S+)", demo.output)
    assert url is not None
    assert ending is not None
    assert "email_send" in run_anywhere("jobs", "list", database=url[1]).stdout
    subprocess.run(ending[1].split(), check=True)
    wait_until(lambda: not demo.processes(), what="the server to end")
    subprocess.run(ending[2].split(), check=True)
    demo.assert_nothing_is_left()


def test_without_the_extra_one_line_says_what_to_install(run_anywhere, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *args: None if name == "aiosmtpd" else find_spec(name, *args)
    )
    result = run_anywhere("demo", code=3)
    assert result.stdout == ""
    assert re.fullmatch(r"Error: .*pip install 'jobqueue\[embedded\]'\n", result.stderr)


# --- the demo holds itself to what it tells -------------------------------------------------------------------

DEAD = 142
LOST = 7
PID = 1234


def job_for(number: int) -> JobFacts:
    dead = cast.customer_of(number) == cast.CLOSED
    return JobFacts(
        uuid7(),
        key_of(number),
        JobStatus.DLQ if dead else JobStatus.DONE,
        "host/99/uuid",
        f"not delivered: {CLOSED}" if dead else None,
    )


def mail_of(job: JobFacts, recipient: str, text: str = "Thank you!") -> Mail:
    return Mail(recipient, f"Message-ID: <{job.id}@shop.example>\r\n\r\n{text}".encode())


@pytest.fixture
def ledger() -> Ledger:
    """As the fifth scene finds it: one repeat, of a job that the killed worker held."""
    customers = {number: cast.customer_of(number) for number in range(1, cast.ORDERS + 1)}
    jobs = {number: job_for(number) for number in customers}
    mails = [mail_of(jobs[number], customer) for number, customer in customers.items() if number != DEAD]
    return Ledger(customers, list(jobs.values()), [*mails, mails[LOST - 1]], cast.GREYLISTED)


@pytest.fixture
def loss(ledger: Ledger) -> Loss:
    return Loss(PID, frozenset({ledger.job_of[LOST].id}))


def all_told(ledger: Ledger, loss: Loss) -> bool:
    claims = Claims(PlainScreen())
    claims.nearly_all_delivered(ledger)
    claims.rolled_back(ledger)
    claims.recovered(ledger, loss)
    claims.repeated(ledger, loss)
    claims.tried_again(ledger)
    claims.refused(ledger)
    return claims.all_hold


def test_what_is_as_told_holds(ledger, loss, capsys):
    assert all_told(ledger, loss)
    assert "WRONG" not in capsys.readouterr().out


def with_job(ledger: Ledger, number: int, **changes: object) -> Ledger:
    changed = replace(ledger.job_of[number], **changes)
    return replace(ledger, jobs=[changed if job.id == changed.id else job for job in ledger.jobs])


def with_mail(ledger: Ledger, mail: Mail) -> Ledger:
    return replace(ledger, mails=[*ledger.mails, mail])


WRONGS: dict[str, Callable[[Ledger], Ledger]] = {
    "a mail that is missing": lambda found: replace(found, mails=found.mails[1:]),
    "a mail in another's mailbox": lambda found: with_mail(
        replace(found, mails=found.mails[1:]), mail_of(found.job_of[1], cast.customer_of(2))
    ),
    "a mail of no job": lambda found: with_mail(found, mail_of(job_for(1), cast.customer_of(1))),
    "a job left behind": lambda found: with_job(found, 1, status=JobStatus.PENDING),
    "a second dead letter": lambda found: with_job(found, 1, status=JobStatus.DLQ),
    "a dead letter without the server's words": lambda found: with_job(found, DEAD, last_error="boom"),
    "a dead letter that was delivered": lambda found: with_mail(found, mail_of(found.job_of[DEAD], cast.CLOSED)),
    "no dead letter": lambda found: with_job(found, DEAD, status=JobStatus.DONE),
    "a job that is still the killed worker's": lambda found: with_job(found, LOST, worker=f"host/{PID}/uuid"),
    "a repeat of a job that was not lost": lambda found: with_mail(found, found.mails[0]),
    "a repeat that is another mail": lambda found: with_mail(
        found, mail_of(found.job_of[LOST], cast.customer_of(LOST), "Thanks again!")
    ),
    "nobody put off": lambda found: replace(found, put_off=frozenset()),
    "an order that was rolled back": lambda found: replace(
        found, customers=found.customers | {cast.ROLLED_BACK: cast.customer_of(cast.ROLLED_BACK)}
    ),
    "a job that was rolled back": lambda found: replace(found, jobs=[*found.jobs, job_for(cast.ROLLED_BACK)]),
}


@pytest.mark.parametrize("wrong", WRONGS.values(), ids=WRONGS)
def test_what_is_not_as_told_is_called_wrong(ledger, loss, wrong, capsys):
    assert not all_told(wrong(ledger), loss)
    assert "WRONG" in capsys.readouterr().out


def test_a_worker_that_held_nothing_was_not_killed_in_the_middle(ledger):
    assert not all_told(ledger, Loss(PID, frozenset[UUID]()))


# --- parts ----------------------------------------------------------------------------------------------------


def test_a_signal_waits_for_a_check():
    checked = False

    def interrupted() -> None:
        nonlocal checked
        with Interruptions() as interruptions:
            signal.raise_signal(signal.SIGINT)
            checked = True
            interruptions.check()

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert checked


def test_what_fails_after_a_signal_failed_because_of_it():
    def interrupted() -> None:
        with Interruptions():
            signal.raise_signal(signal.SIGTERM)
            raise RuntimeError("a child that the signal ended")

    with pytest.raises(SystemExit) as ended:
        interrupted()
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_commands_are_neither_wrapped_nor_cut_on_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    command = "export DATABASE_URL=" + "x" * 100
    TerminalScreen().commands([(command, ""), ("jobqueue jobs list", "lists")])
    assert capsys.readouterr().out == f"     {command}\n     jobqueue jobs list  lists\n"
