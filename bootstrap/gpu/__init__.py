"""GPUs: the driver, what they need beside it, and a check that they compute."""
