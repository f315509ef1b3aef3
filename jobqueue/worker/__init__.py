"""The worker: claims jobs, runs their handlers, writes what came of them."""

from jobqueue.worker.worker import Worker

__all__ = ["Worker"]
