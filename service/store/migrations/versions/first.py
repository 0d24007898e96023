"""Create predictions, units, outcomes and model versions."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def columns(**kinds: Any) -> list[sa.Column[Any]]:  # noqa: ANN401 a class of SQLAlchemy
    """Make columns that hold a value in every row."""
    return [sa.Column(name, kind, nullable=False) for name, kind in kinds.items()]


def upgrade() -> None:
    """Upgrade to this revision."""
    answer: dict[str, Any] = {
        "rul": sa.Double,
        "lower": sa.Double,
        "upper": sa.Double,
        "rul_state": sa.String,
        "health_state": sa.String,
        "predicted_at": sa.Double,
    }
    op.create_table(
        "model_versions",
        sa.Column("id", sa.Integer, primary_key=True),
        *columns(model=sa.String, version=sa.String, cap=sa.Double, nominal_coverage=sa.Double),
        sa.UniqueConstraint("model", "version"),
    )
    op.create_table(
        "predictions",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        *columns(version_id=sa.Integer, unit=sa.String, last_cycle=sa.Integer, **answer),
        sa.Column("scored", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.UniqueConstraint("version_id", "unit", "last_cycle"),
    )
    op.create_table(
        "units",
        sa.Column("model", sa.String, primary_key=True),
        sa.Column("unit", sa.String, primary_key=True),
        *columns(version_id=sa.Integer, last_cycle=sa.Integer, **answer),
    )
    op.create_table(
        "outcomes",
        sa.Column("model", sa.String, primary_key=True),
        sa.Column("unit", sa.String, primary_key=True),
        *columns(kind=sa.String, cycle=sa.Integer),
        sa.Column("happened_at", sa.Double),
        *columns(recorded_at=sa.Double),
    )
