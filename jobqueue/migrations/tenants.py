"""``op.set_tenants_table``: jobs that belong to the application's own tenants table, or to none."""
