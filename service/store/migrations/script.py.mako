"""${message}."""

import sqlalchemy as sa
from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    """Upgrade to this revision."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Return to the revision before."""
    ${downgrades if downgrades else "pass"}
