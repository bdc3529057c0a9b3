"""The rules of the daemon and of launchers that `make sim-mutants` removes, one at a time, and what detects each."""

from tests.sim.removed_rules.decisions import DECISIONS
from tests.sim.removed_rules.edges import EDGES
from tests.sim.removed_rules.market import MARKET
from tests.sim.removed_rules.mutant import Mutant

MUTANTS = (*EDGES, *DECISIONS, *MARKET)
__all__ = ["MUTANTS", "Mutant"]
