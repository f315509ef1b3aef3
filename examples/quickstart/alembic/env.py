import os

from alembic import context
from models import Base
from sqlalchemy import create_engine

from jobqueue.migrations import include_object

with create_engine(os.environ["DATABASE_URL"]).connect() as connection:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        include_object=include_object,  # autogenerate leaves jobqueue's tables alone
        transaction_per_migration=True,  # a new kind can be used once its revision is committed
    )
    with context.begin_transaction():
        context.run_migrations()
