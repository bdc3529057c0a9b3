"""Metrics for Prometheus: pure functions from what the daemon knows to samples, and what is counted beside the loop."""
