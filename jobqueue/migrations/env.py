"""The Alembic environment of jobqueue on its own (Way C). ``runner.py`` hands it the connection.

A host application that chains the revisions into its own environment (Way A) never runs this file.
"""

from typing import Any

from alembic import context

from jobqueue.migrations.schema import SCHEMA, VERSION_TABLE

OPTIONS: dict[str, Any] = {
    "version_table": VERSION_TABLE,
    "version_table_schema": SCHEMA,
    # A kind can be used only after the transaction that added it
    "transaction_per_migration": True,
}

# Not IF NOT EXISTS: that needs the right to create schemas even where the administrator has made this one
CREATE_SCHEMA = f"DO $$ BEGIN IF to_regnamespace('{SCHEMA}') IS NULL THEN CREATE SCHEMA {SCHEMA}; END IF; END $$"


def run_offline() -> None:
    context.configure(dialect_name="postgresql", dialect_opts={"paramstyle": "named"}, **OPTIONS)
    with context.begin_transaction():
        context.execute(CREATE_SCHEMA)  # for the version table
        context.run_migrations()


def run_online() -> None:
    connection = context.config.attributes["connection"]
    if connection.in_transaction():
        connection.exec_driver_sql(CREATE_SCHEMA)
    else:
        with connection.begin():
            connection.exec_driver_sql(CREATE_SCHEMA)
    context.configure(connection=connection, **OPTIONS)
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    run_offline()
else:
    run_online()
