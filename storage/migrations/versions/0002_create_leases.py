"""Create the table of leases: which controller works on which study."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "autotune_lease",
        sa.Column("resource", sa.String(1100), nullable=False),
        sa.Column("owner", sa.String(32), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("machine", sa.String(128), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("started_ticks", sa.BigInteger(), nullable=False),
        sa.Column("since", sa.String(32), nullable=False),
        sa.Column("heartbeat_s", sa.Double(), nullable=False),
        sa.Column("expiry_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("resource"),
    )
