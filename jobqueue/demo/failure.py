"""What ends the demo early."""

from __future__ import annotations

from jobqueue.errors import JobQueueError


class DemoFailed(JobQueueError):
    """The demo could not go on. The message says what it was waiting for, or what did not start."""
