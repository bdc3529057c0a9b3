"""Decisions, and nothing else: plan(world, now) -> Plan. No I/O, no clock, no randomness.

Order of reading: world.py (what is known), actions.py (what can be done), plan.py (the decision as a whole), draft.py
(one job's decision in progress), predicates.py (the terms), then the steps in plan.py's order: housekeeping.py, sync.py
with outcomes.py, jobs.py, rounds.py, pauses.py, fleet.py with release.py, alerts.py, sentences.py. Beside the jobs:
orphans.py, reads.py, deliveries.py with stories.py, journal_guard.py, adoption.py. quiescence.py says which jobs are
planned at all.
"""
