"""``python -m jobqueue`` is the command ``jobqueue``."""

from jobqueue.cli import main

main()
