"""Add the kind invoice_create."""

from alembic import op

import jobqueue.migrations.kinds  # gives op.add_job_kind and op.drop_job_kind

revision = "shop_0002"
down_revision = "shop_0001"
branch_labels = None
depends_on = "jobqueue_0001"  # where the enum is made


def upgrade() -> None:
    op.add_job_kind("invoice_create")


def downgrade() -> None:
    op.drop_job_kind("invoice_create")  # refuses while jobs of this kind are there
