"""Which offers a job may take, and what clouds last answered about capacity. Pure: no I/O, no clock, no randomness."""
