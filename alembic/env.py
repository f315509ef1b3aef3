"""The Alembic environment of this repository, the first host application of jobqueue.

Copy from here what jobqueue needs of an environment: ``transaction_per_migration=True``, because a kind can be
used only after the transaction that added it, and ``include_object``.
"""

import os
from logging.config import fileConfig
from typing import Any

from alembic import context
from sqlalchemy import URL, MetaData, NullPool, create_engine

from jobqueue.migrations import database_url, include_object

target_metadata = MetaData()
"""What `alembic revision --autogenerate` compares with: put your application's metadata here."""

OPTIONS: dict[str, Any] = {
    "target_metadata": target_metadata,
    "include_schemas": True,
    "include_object": include_object,
    "transaction_per_migration": True,
}


def configured_url() -> URL:
    url = os.environ.get("DATABASE_URL")
    if not url:
        raise SystemExit("DATABASE_URL is not set; export DATABASE_URL=postgresql://user:password@host/database")
    return database_url(url)


def run_offline() -> None:
    context.configure(dialect_name="postgresql", dialect_opts={"paramstyle": "named"}, **OPTIONS)
    with context.begin_transaction():
        context.run_migrations()


def run_online() -> None:
    engine = create_engine(configured_url(), poolclass=NullPool)
    with engine.connect() as connection:
        context.configure(connection=connection, **OPTIONS)
        with context.begin_transaction():
            context.run_migrations()


if context.config.config_file_name is not None:
    fileConfig(context.config.config_file_name, disable_existing_loggers=False)

if context.is_offline_mode():
    run_offline()
else:
    run_online()
