"""jobqueue: the SQLAlchemy-native background job queue. Jobs are rows of ``mdm.job`` in your own PostgreSQL."""

from jobqueue.enqueue import Enqueued, NewJob, aenqueue, aenqueue_many, enqueue, enqueue_many
from jobqueue.handlers import DeadLetter, Handler, Handlers, JobContext, Snooze, Stop
from jobqueue.models import SYSTEM_TENANT_ID, AuditEntry, Base, Job, Tenant
from jobqueue.operations import cancel, discard, replay
from jobqueue.repository import JobFilter, JobRepository
from jobqueue.settings import Settings, load_settings
from jobqueue.states import JobKind, JobStatus

__version__ = "0.1.0"

__all__ = [
    "SYSTEM_TENANT_ID",
    "AuditEntry",
    "Base",
    "DeadLetter",
    "Enqueued",
    "Handler",
    "Handlers",
    "Job",
    "JobContext",
    "JobFilter",
    "JobKind",
    "JobRepository",
    "JobStatus",
    "NewJob",
    "Settings",
    "Snooze",
    "Stop",
    "Tenant",
    "aenqueue",
    "aenqueue_many",
    "cancel",
    "discard",
    "enqueue",
    "enqueue_many",
    "load_settings",
    "replay",
]
