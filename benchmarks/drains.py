"""Workers that drain jobs whose handlers do (next to) nothing."""

from __future__ import annotations

from sqlalchemy import URL

from jobqueue import Handlers, JobContext, Tenant, load_settings
from jobqueue.worker import Worker


def plain(url: URL) -> None:
    handlers = Handlers()

    @handlers.register("reindex")
    def nothing(payload: dict[str, int], job: JobContext) -> None:
        pass

    _run(handlers, url)


def asynchronous(url: URL) -> None:
    handlers = Handlers()

    @handlers.register("reindex")
    async def nothing(payload: dict[str, int], job: JobContext) -> None:
        pass

    _run(handlers, url)


def transactional(url: URL) -> None:
    """Each job inserts a row, and commits it together with its ``done``."""
    handlers = Handlers()

    @handlers.register("reindex")
    def insert(payload: dict[str, int], job: JobContext) -> None:
        job.session.add(Tenant(name="a row"))

    _run(handlers, url)


def _run(handlers: Handlers, url: URL) -> None:
    settings = load_settings(database_url=url.render_as_string(hide_password=False), concurrency=10)
    Worker(handlers, settings, drain=True).run()
