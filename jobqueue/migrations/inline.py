"""Way B: jobqueue's revisions, applied by a line in a revision of the application."""
