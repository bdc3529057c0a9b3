"""What the daemon does on machines over SSH: prepare them, and what happens there before they are terminated."""
