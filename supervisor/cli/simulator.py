"""The commands of `spotsup-simulator`: nothing else of the supervisor imports it, and it may not be installed.

Import this module late. Where the simulator is missing, `spotsup_entry` says what brings it.
"""

from spotsup_simulator.commands.plan import Wanted, show_simulated
from spotsup_simulator.commands.simulate import simulate

__all__ = ["Wanted", "show_simulated", "simulate"]
