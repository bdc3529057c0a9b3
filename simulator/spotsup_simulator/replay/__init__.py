"""What a job would have done on a recorded spot market: the daemon's own planner and loop, under a virtual clock."""
