"""Add to predictions what they rested on."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Upgrade to this revision."""
    op.add_column("predictions", sa.Column("explanation", sa.String))
