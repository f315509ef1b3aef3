"""What several tests need: a server, databases, rows, and waiting without guessing."""
