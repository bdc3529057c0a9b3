"""How often a pool takes its spot machines: counted as they end, weighed against a prior, and forgotten by and by."""

from __future__ import annotations

from dataclasses import dataclass

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class HazardRules:
    """How much is believed of what was counted."""

    # In recordings of V100 and p3 spot a zone takes a machine every 0.7 to 10.5 node-hours. The prior is at the better
    # end, so that a pool which nobody has tried is tried, and of one hour: a few preemptions outweigh it.
    prior_per_hour: float = 0.1
    prior_hours: float = 1.0
    # There, how often a zone took machines in six hours tells of the next six (correlation 0.45 to 0.56), and still of
    # those a day later (0.37).
    half_life_s: float = 6 * HOUR_S


@dataclass(frozen=True, slots=True)
class Exposure:
    """What was counted of a pool, as of `at`."""

    at: float  # UNIX seconds
    hours: float = 0.0  # that its spot machines ran
    preemptions: float = 0.0

    def aged(self, now: float, rules: HazardRules) -> Exposure:
        """Return the same, as of now."""
        kept = 0.5 ** (max(0.0, now - self.at) / rules.half_life_s)
        return Exposure(now, self.hours * kept, self.preemptions * kept)

    def plus(self, hours: float, preemptions: int, now: float, rules: HazardRules) -> Exposure:
        """Return the exposure with one more machine, which ran for so long."""
        aged = self.aged(now, rules)
        return Exposure(now, round(aged.hours + hours, 4), round(aged.preemptions + preemptions, 4))


def per_hour(exposure: Exposure | None, now: float, rules: HazardRules) -> float:
    """Preemptions per node-hour to expect of a pool."""
    known = exposure.aged(now, rules) if exposure is not None else Exposure(now)
    prior = rules.prior_per_hour * rules.prior_hours
    return (prior + known.preemptions) / (rules.prior_hours + known.hours)
