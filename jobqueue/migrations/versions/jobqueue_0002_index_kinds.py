"""Add the kinds index_sync and gin_backfill."""

# mypy: disable-error-code="attr-defined"
# (Alembic gives `op` its members at run time)

from alembic import op

import jobqueue.migrations.kinds  # noqa: F401  (registers op.add_job_kind)

revision = "jobqueue_0002"
down_revision = "jobqueue_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_job_kind("index_sync")
    op.add_job_kind("gin_backfill")
    op.execute("COMMENT ON TABLE mdm.job IS 'jobqueue: the tables of revision jobqueue_0002'")


def downgrade() -> None:
    op.drop_job_kind("gin_backfill")
    op.drop_job_kind("index_sync")
    op.execute("COMMENT ON TABLE mdm.job IS 'jobqueue: the tables of revision jobqueue_0001'")
