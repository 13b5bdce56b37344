"""Create the tables of studies, trials, samples and events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "autotune_study",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(1000), nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("updated_at", sa.String(32), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("verdict", sa.Text()),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name", name="autotune_study_name_key"),
    )
    op.create_table(
        "autotune_trial",
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("phase", sa.String(32), nullable=False),
        sa.Column("fidelity", sa.String(16), nullable=False),
        sa.Column("candidate", sa.Text(), nullable=False),
        sa.Column("replicate_of", sa.Integer()),
        sa.Column("started_at", sa.String(32), nullable=False),
        sa.Column("finished_at", sa.String(32)),
        sa.Column("timings", sa.Text()),
        sa.Column("metrics", sa.Text()),
        sa.Column("intervals", sa.Text()),
        sa.Column("engine", sa.Text()),
        sa.Column("diagnosis", sa.Text()),
        sa.Column("failure_class", sa.String(32)),
        sa.Column("failure_evidence", sa.Text()),
        sa.Column("outcome", sa.Text()),
        sa.Column("told", sa.Boolean(), nullable=False),
        sa.Column("log_path", sa.Text()),
        sa.ForeignKeyConstraint(["study_id"], ["autotune_study.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("study_id", "number"),
    )
    op.create_table(
        "autotune_sample",
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study_id", "number"],
            ["autotune_trial.study_id", "autotune_trial.number"],
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("study_id", "number", "name"),
    )
    op.create_table(
        "autotune_event",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("at", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["study_id"], ["autotune_study.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_autotune_event_study_id", "autotune_event", ["study_id"])
