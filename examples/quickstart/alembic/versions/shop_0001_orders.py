"""Orders and invoices."""

import sqlalchemy as sa
from alembic import op

revision = "shop_0001"
down_revision = None
branch_labels = ("shop",)
depends_on = None


def upgrade() -> None:
    op.create_table(
        "shop_order",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("tenant_id", sa.Uuid, nullable=False),
        sa.Column("email", sa.String, nullable=False),
        sa.Column("total_cents", sa.Integer, nullable=False),
    )
    op.create_table(
        "shop_invoice",
        sa.Column("order_id", sa.Integer, sa.ForeignKey("shop_order.id"), primary_key=True),
        sa.Column("text", sa.String, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("shop_invoice")
    op.drop_table("shop_order")
