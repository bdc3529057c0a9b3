"""What the daemon does on nodes over SSH: bootstrap, and clean-up before termination."""
