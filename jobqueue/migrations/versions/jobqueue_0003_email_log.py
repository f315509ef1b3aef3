"""Create email_log: what became of each mail, kept longer than its job."""

import sqlalchemy as sa
from alembic import op

revision = "jobqueue_0003"
down_revision = "jobqueue_0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "email_log",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("job_id", sa.Uuid()),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("sender", sa.Text(), nullable=False),
        sa.Column("recipients", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("code", sa.Integer()),
        sa.Column("reply", sa.Text()),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("clock_timestamp()")),
        sa.PrimaryKeyConstraint("id", name=op.f("email_log_pkey")),
        sa.ForeignKeyConstraint(["job_id"], ["mdm.job.id"], name=op.f("email_log_job_fk"), ondelete="SET NULL"),
        sa.CheckConstraint("outcome IN ('accepted', 'refused', 'deferred')", name=op.f("email_log_outcome_chk")),
        schema="mdm",
    )
    op.create_index(op.f("ix_email_log_job"), "email_log", ["job_id"], schema="mdm")
    op.create_index(op.f("ix_email_log_message"), "email_log", ["message_id"], schema="mdm")
    op.execute("COMMENT ON TABLE mdm.job IS 'jobqueue: the tables of revision jobqueue_0003'")


def downgrade() -> None:
    op.drop_table("email_log", schema="mdm")
    op.execute("COMMENT ON TABLE mdm.job IS 'jobqueue: the tables of revision jobqueue_0002'")
