"""Handlers that ship with the queue, each a registry to include: ``handlers.include(email.handlers)``."""
