"""``alembic_options``: what an application's Alembic environment needs of jobqueue, in one line."""
