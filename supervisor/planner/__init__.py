"""Decisions, and nothing else: plan(world, now) -> Plan. No I/O, no clock, no randomness.

Order of reading: world.py (what is known), actions.py (what can be done), plan.py (the decision from above),
then sync.py, fleet.py, rounds.py, jobs.py, trouble.py, retention.py, orphans.py (its parts).
"""
