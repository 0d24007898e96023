"""Add the tenant that owns a unit; rows that exist belong to none."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

PREDICTION = ["version_id", "tenant", "unit", "last_cycle"]
UNIT = ["tenant", "model", "unit"]
# SQLite does not name constraints by itself; these are the names that PostgreSQL gives them.
KEYS = {"pk": "%(table_name)s_pkey"}
UNIQUE = {"uq": "predictions_version_id_unit_last_cycle_key"}


def tenant() -> sa.Column[str]:
    """Make the column, once for each table."""
    return sa.Column("tenant", sa.String, nullable=False, server_default="")


def upgrade() -> None:
    """Upgrade to this revision; SQLite copies the tables."""
    with op.batch_alter_table("predictions", naming_convention=UNIQUE) as table:
        table.add_column(tenant())
        table.drop_constraint(UNIQUE["uq"], type_="unique")
        table.create_unique_constraint("predictions_key", PREDICTION)
    for name in ("units", "outcomes"):
        with op.batch_alter_table(name, naming_convention=KEYS) as table:
            table.add_column(tenant())
            table.drop_constraint(f"{name}_pkey", type_="primary")
            table.create_primary_key(f"{name}_pkey", UNIT)
