"""The command lines. They load late: what a command does not need is not imported."""
