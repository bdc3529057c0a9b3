"""A container image as the environment: a runtime, the image, and an interpreter that runs in it."""
