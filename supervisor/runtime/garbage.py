"""How often Python looks through all objects of the daemon for cycles that nothing refers to."""

from __future__ import annotations

import gc

# Of the middle generation's collections, for one of all objects; 10 is Python's own. With 20 jobs of 64 nodes such a
# one takes 0.13 s, in which no thread runs: a read of the API in a hundred waited for it. Nearly all cycles are of
# requests and exceptions, and end with the younger generations. Python 3.14 collects in another way, without this.
SELDOM = 1000


def collect_all_seldom() -> None:
    """Collect all seldom, for the whole process, from now on."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, SELDOM)
