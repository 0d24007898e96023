"""Add readings of units, and failure probabilities of predictions."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Upgrade to this revision."""
    for name in ("predictions", "units"):
        op.add_column(name, sa.Column("failure_probability", sa.String))
        # Nothing is known of the health of a unit whose readings are unlike the training data.
        op.execute(f"UPDATE {name} SET health_state = 'unknown' WHERE rul_state = 'out_of_distribution'")  # noqa: S608
    op.create_table(
        "column_lists",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("names", sa.String, nullable=False, unique=True),
    )
    op.create_table(
        "readings",
        sa.Column("tenant", sa.String, nullable=False, server_default=""),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("unit", sa.String, nullable=False),
        sa.Column("cycle", sa.Integer, nullable=False),
        sa.Column("columns_id", sa.Integer, nullable=False),
        sa.Column("values", sa.LargeBinary, nullable=False),
        sa.Column("received_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "model", "unit", "cycle", name="readings_pkey"),
        sqlite_with_rowid=False,
    )
    op.create_index("readings_received_at", "readings", ["received_at"])
