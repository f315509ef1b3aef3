"""What keeps the queue healthy beside the work itself."""
