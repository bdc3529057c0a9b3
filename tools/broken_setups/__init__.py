"""What can be wrong on the day of installing, and what spotsup says then: the parameters of a test, and a page of the
reference. Data only; tests/integration/test_broken_setups.py breaks each one.
"""

from __future__ import annotations

from tools.broken_setups import around, clouds, host, own
from tools.broken_setups.row import CLOUDS, BrokenSetup

__all__ = ["CLOUDS", "ROWS", "BrokenSetup"]

ROWS = (*host.ROWS, *clouds.ROWS, *own.ROWS, *around.ROWS)
