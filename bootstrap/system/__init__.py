"""The machine itself: first boot, package updates, clock, and the dead-man switch."""
