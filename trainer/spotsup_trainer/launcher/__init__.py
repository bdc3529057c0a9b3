"""Starts and stops the workers of one node: the elastic agent, the fork server, and data jobs."""
