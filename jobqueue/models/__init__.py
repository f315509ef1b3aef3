"""The tables of schema ``mdm`` as SQLAlchemy models."""

from jobqueue.models.audit import AuditEntry
from jobqueue.models.base import Base, JobKindType
from jobqueue.models.email_log import EmailLog
from jobqueue.models.job import Job
from jobqueue.models.tenant import SYSTEM_TENANT_ID, Tenant
from jobqueue.models.worker import WorkerRecord

__all__ = [
    "SYSTEM_TENANT_ID",
    "AuditEntry",
    "Base",
    "EmailLog",
    "Job",
    "JobKindType",
    "Tenant",
    "WorkerRecord",
]
