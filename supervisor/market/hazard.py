"""How often a pool takes its spot machines: counted as they end, weighed against a prior, and forgotten by and by."""

from __future__ import annotations

from dataclasses import dataclass

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class HazardRules:
    """How much is believed of what was counted."""

    # Recordings of V100 and p3 spot zones have a preemption every 1 to 30 node-hours. A prior of so few hours lets two
    # preemptions within minutes outweigh prices that differ by a tenth, and one in a day nothing.
    prior_per_hour: float = 0.1
    prior_hours: float = 1.0
    half_life_s: float = 6 * HOUR_S  # in the same recordings a zone that was bad is as good as any other a day later


@dataclass(frozen=True, slots=True)
class Exposure:
    """What was counted of a pool, as of `at`."""

    at: float  # UNIX seconds
    hours: float = 0.0  # that its spot machines ran
    preemptions: float = 0.0

    def aged(self, now: float, rules: HazardRules) -> Exposure:
        """The same, as of now."""
        kept = 0.5 ** (max(0.0, now - self.at) / rules.half_life_s)
        return Exposure(now, self.hours * kept, self.preemptions * kept)

    def plus(self, hours: float, preemptions: int, now: float, rules: HazardRules) -> Exposure:
        """With one more machine, which ran for so long."""
        aged = self.aged(now, rules)
        return Exposure(now, round(aged.hours + hours, 4), round(aged.preemptions + preemptions, 4))


def per_hour(exposure: Exposure | None, now: float, rules: HazardRules) -> float:
    """Preemptions per node-hour to expect of a pool."""
    known = exposure.aged(now, rules) if exposure is not None else Exposure(now)
    prior = rules.prior_per_hour * rules.prior_hours
    return (prior + known.preemptions) / (rules.prior_hours + known.hours)
