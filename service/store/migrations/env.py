"""Run migrations for alembic, on the connection and in the transaction of `database.migrate`."""

from alembic import context

from service.store.schema import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
with context.begin_transaction():
    context.run_migrations()
