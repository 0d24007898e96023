"""Predictions, the latest of each unit, and outcomes."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """To this revision."""
    op.create_table(
        "model_versions",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("version", sa.String, nullable=False),
        sa.Column("cap", sa.Double, nullable=False),
        sa.Column("nominal_coverage", sa.Double, nullable=False),
        sa.UniqueConstraint("model", "version"),
    )
    op.create_table(
        "predictions",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("version_id", sa.Integer, nullable=False),
        sa.Column("unit", sa.String, nullable=False),
        sa.Column("last_cycle", sa.Integer, nullable=False),
        sa.Column("rul", sa.Double, nullable=False),
        sa.Column("lower", sa.Double, nullable=False),
        sa.Column("upper", sa.Double, nullable=False),
        sa.Column("rul_state", sa.String, nullable=False),
        sa.Column("health_state", sa.String, nullable=False),
        sa.Column("predicted_at", sa.Double, nullable=False),
        sa.Column("scored", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.UniqueConstraint("version_id", "unit", "last_cycle"),
    )
    op.create_table(
        "units",
        sa.Column("model", sa.String, primary_key=True),
        sa.Column("unit", sa.String, primary_key=True),
        sa.Column("version_id", sa.Integer, nullable=False),
        sa.Column("last_cycle", sa.Integer, nullable=False),
        sa.Column("rul", sa.Double, nullable=False),
        sa.Column("lower", sa.Double, nullable=False),
        sa.Column("upper", sa.Double, nullable=False),
        sa.Column("rul_state", sa.String, nullable=False),
        sa.Column("health_state", sa.String, nullable=False),
        sa.Column("predicted_at", sa.Double, nullable=False),
    )
    op.create_table(
        "outcomes",
        sa.Column("model", sa.String, primary_key=True),
        sa.Column("unit", sa.String, primary_key=True),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("cycle", sa.Integer, nullable=False),
        sa.Column("happened_at", sa.Double),
        sa.Column("recorded_at", sa.Double, nullable=False),
    )


def downgrade() -> None:
    """Back to an empty database."""
    for table in ("outcomes", "units", "predictions", "model_versions"):
        op.drop_table(table)
