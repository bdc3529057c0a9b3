"""Exporters of metrics that the image brought are started; none is installed. Training never waits for them."""

from __future__ import annotations

from bootstrap.decision import Decision, not_ours, ours
from bootstrap.facts import Facts
from bootstrap.model import Run, Setup, Skip
from bootstrap.monitoring.facts import EXPORTERS

START_TIMEOUT_S = 60.0


def monitoring(facts: Facts, setup: Setup) -> Decision:
    """Start what is installed and was not started; one that has failed is named."""
    if not ours(facts, setup):
        return not_ours(facts, setup)
    units = facts.monitoring.units
    idle = [name for name in EXPORTERS if units.get(name) == "inactive"]
    if not units:
        return Skip("no exporter is installed")
    if not idle:
        return Skip(", ".join(f"{name} is {units[name]}" for name in EXPORTERS if name in units))
    # One that fails says so in its own log, and is not tried again: a node without metrics still trains.
    script = "".join(f"systemctl enable --now {name} || :\n" for name in idle)
    return (Run(f"start {', '.join(idle)}", script, START_TIMEOUT_S, as_root=True),)
