"""Starts the exporters of metrics that the image brought. None is installed, and training never waits for one."""

from __future__ import annotations

from bootstrap.decision import Decision, not_ours, ours
from bootstrap.facts import Facts
from bootstrap.model import Run, Setup, Skip
from bootstrap.monitoring.facts import EXPORTERS
from bootstrap.templates import fill

START_TIMEOUT_S = 60.0


def monitoring(facts: Facts, setup: Setup) -> Decision:
    """Start what is installed and was not started. An exporter that has failed is reported."""
    if not ours(facts, setup):
        return not_ours(facts, setup)
    units = facts.monitoring.units
    idle = [name for name in EXPORTERS if units.get(name) == "inactive"]
    if not units:
        return Skip("no exporter is installed")
    if not idle:
        return Skip(", ".join(f"{name} is {units[name]}" for name in EXPORTERS if name in units))
    script = fill("monitoring/start.sh", units=idle)
    return (Run(f"start {', '.join(idle)}", script, START_TIMEOUT_S, as_root=True),)
