"""The pytest plugin: loaded by pytest itself wherever jobqueue is installed."""
