"""What applications test their own jobs and handlers with."""
