"""Alerts: each event is sent at least once, always with the same id."""
