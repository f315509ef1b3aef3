"""``jobqueue demo``: a shop whose mails are sent by a worker that gets killed in the middle.

``story`` tells it, scene by scene. ``shop`` is the application, written as an application that uses jobqueue is.
``stage`` holds what the scenes play on: ``postgres``, ``mailserver``, ``worker``. ``ledger`` reads what happened
from the database and the mailboxes, and ``claims`` holds the story to it.
"""
