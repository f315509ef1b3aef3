"""Create the queue: tenant, job, job_worker, audit_log.

History is frozen: the DDL is written out here and never derived from the models.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "jobqueue_0001"
down_revision = None
branch_labels = ("jobqueue",)
depends_on = None

NOW = sa.text("now()")
PENDING = sa.text("status = 'pending'")
RUNNING = sa.text("status = 'running'")

job_kind = postgresql.ENUM(name="job_kind", schema="mdm", create_type=False)
job_status = postgresql.ENUM(name="job_status", schema="mdm", create_type=False)


def upgrade() -> None:
    # Not IF NOT EXISTS: that needs the right to create schemas even where the administrator has made this one
    op.execute("DO $$ BEGIN IF to_regnamespace('mdm') IS NULL THEN CREATE SCHEMA mdm; END IF; END $$")
    create_types()
    create_tenant()
    create_job()
    create_job_indexes()
    create_job_worker()
    create_audit_log()
    op.execute("COMMENT ON TABLE mdm.job IS 'jobqueue: the tables of revision jobqueue_0001'")


def downgrade() -> None:
    op.drop_table("audit_log", schema="mdm")
    op.drop_table("job_worker", schema="mdm")
    op.drop_table("job", schema="mdm")
    # It may be gone: op.set_tenants_table puts the application's own in its place
    op.execute("DROP TABLE IF EXISTS mdm.tenant")
    op.execute("DROP TYPE mdm.job_status")
    op.execute("DROP TYPE mdm.job_kind")
    # The schema stays while anything else lives in it, such as the version table, or where it is not ours
    op.execute(
        "DO $$ BEGIN DROP SCHEMA mdm; "
        "EXCEPTION WHEN dependent_objects_still_exist OR insufficient_privilege THEN NULL; END $$"
    )


def create_types() -> None:
    op.execute(
        "CREATE TYPE mdm.job_kind AS ENUM "
        "('email_send', 'bulk_import', 'reindex', 'outbox_dispatch', 'cleanup_jobs', 'virus_scan')"
    )
    op.execute("CREATE TYPE mdm.job_status AS ENUM ('pending', 'running', 'done', 'failed', 'dlq')")


def create_tenant() -> None:
    op.create_table(
        "tenant",
        sa.Column("id", sa.Uuid(), nullable=False, server_default=sa.text("gen_random_uuid()")),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=NOW),
        sa.PrimaryKeyConstraint("id", name=op.f("tenant_pkey")),
        schema="mdm",
    )
    op.execute("INSERT INTO mdm.tenant (id, name) VALUES ('00000000-0000-0000-0000-000000000000', 'system')")


def create_job() -> None:
    op.create_table(
        "job",
        sa.Column("id", sa.Uuid(), nullable=False, server_default=sa.text("gen_random_uuid()")),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("job_kind", job_kind, nullable=False),
        sa.Column("status", job_status, nullable=False, server_default=sa.text("'pending'")),
        sa.Column("payload", postgresql.JSONB(), nullable=False, server_default=sa.text("'{}'::jsonb")),
        sa.Column("priority", sa.SmallInteger(), nullable=False, server_default=sa.text("100")),
        sa.Column("available_at", sa.DateTime(timezone=True), nullable=False, server_default=NOW),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("max_attempts", sa.Integer(), nullable=False, server_default=sa.text("8")),
        sa.Column("last_error", sa.Text()),
        sa.Column("claimed_by", sa.Text()),
        sa.Column("claimed_at", sa.DateTime(timezone=True)),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("completed_at", sa.DateTime(timezone=True)),
        sa.Column("idempotency_key", sa.Text()),
        sa.Column("dedup_key", sa.Text()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=NOW),
        sa.Column("created_by", sa.Text()),
        sa.PrimaryKeyConstraint("id", name=op.f("job_pkey")),
        sa.ForeignKeyConstraint(["tenant_id"], ["mdm.tenant.id"], name=op.f("job_tenant_fk")),
        sa.CheckConstraint("jsonb_typeof(payload) = 'object'", name=op.f("job_payload_is_object_chk")),
        sa.CheckConstraint("attempts >= 0", name=op.f("job_attempts_nonneg_chk")),
        sa.CheckConstraint("max_attempts >= 1", name=op.f("job_max_attempts_positive_chk")),
        sa.CheckConstraint(
            "CASE WHEN status = 'running' THEN claimed_by IS NOT NULL AND claimed_at IS NOT NULL "
            "AND started_at IS NOT NULL WHEN status = 'pending' THEN claimed_by IS NULL AND claimed_at IS NULL "
            "ELSE true END",
            name=op.f("job_claim_chk"),
        ),
        sa.CheckConstraint(
            "(status IN ('done', 'failed', 'dlq')) = (completed_at IS NOT NULL)",
            name=op.f("job_completed_chk"),
        ),
        sa.CheckConstraint(
            "available_at >= '0002-01-01Z' AND available_at < '9999-01-01Z' "
            "AND claimed_at >= '0002-01-01Z' AND claimed_at < '9999-01-01Z' "
            "AND started_at >= '0002-01-01Z' AND started_at < '9999-01-01Z' "
            "AND completed_at >= '0002-01-01Z' AND completed_at < '9999-01-01Z' "
            "AND created_at >= '0002-01-01Z' AND created_at < '9999-01-01Z'",
            name=op.f("job_times_chk"),
        ),
        schema="mdm",
    )
    # Not postgresql_with: SQLAlchemy 2.0 knows it for indexes only
    op.execute(
        "ALTER TABLE mdm.job SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, "
        "autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05)"
    )


def create_job_indexes() -> None:
    create_job_index(
        "job_idempotency_uk",
        ["tenant_id", "job_kind", "idempotency_key"],
        where=sa.text("idempotency_key IS NOT NULL"),
        unique=True,
    )
    create_job_index(
        "job_dedup_uk",
        ["tenant_id", "job_kind", "dedup_key"],
        where=sa.text("dedup_key IS NOT NULL AND status IN ('pending', 'running')"),
        unique=True,
    )
    create_job_index("ix_job_dispatch", ["status", "priority", "available_at"], where=PENDING)
    create_job_index("ix_job_claimed_stale", ["claimed_at"], where=RUNNING)
    create_job_index("ix_job_tenant_kind", ["tenant_id", "job_kind", "status"])
    create_job_index("ix_job_tenant_dispatch", ["tenant_id", "priority", "available_at"], where=PENDING)
    create_job_index("ix_job_kind_dispatch", ["job_kind", "priority", "available_at"], where=PENDING)


def create_job_index(
    name: str, columns: list[str], *, where: sa.TextClause | None = None, unique: bool = False
) -> None:
    op.create_index(op.f(name), "job", columns, schema="mdm", unique=unique, postgresql_where=where)


def create_job_worker() -> None:
    op.create_table(
        "job_worker",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("kinds", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("tenants", sa.ARRAY(sa.Uuid())),
        sa.Column("concurrency", sa.Integer(), nullable=False),
        sa.Column("hungry", sa.Boolean(), nullable=False, server_default=sa.text("false")),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False, server_default=NOW),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False, server_default=NOW),
        sa.Column("version", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("job_worker_pkey")),
        schema="mdm",
    )


def create_audit_log() -> None:
    op.create_table(
        "audit_log",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("tenant_id", sa.Uuid()),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Uuid()),
        sa.Column("actor", sa.Text()),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("clock_timestamp()")),
        sa.Column("details", postgresql.JSONB(), nullable=False, server_default=sa.text("'{}'::jsonb")),
        sa.PrimaryKeyConstraint("id", name=op.f("audit_log_pkey")),
        schema="mdm",
    )
    op.create_index(op.f("ix_audit_log_job"), "audit_log", ["job_id"], schema="mdm")
    op.create_index(op.f("ix_audit_log_at"), "audit_log", ["at"], schema="mdm")
