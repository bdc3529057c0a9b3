"""What becomes of a job file before, and when, it is stored."""
