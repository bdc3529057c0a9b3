"""What of Python's collector the daemon changes."""

from __future__ import annotations

import gc

from supervisor.runtime.garbage import SELDOM, collect_all_seldom


class Knot:
    """A cycle."""

    def __init__(self) -> None:
        self.me = self


def test_all_objects_are_looked_through_seldom_and_new_cycles_still_end_soon() -> None:
    before = gc.get_threshold()
    try:
        collect_all_seldom()
        assert gc.get_threshold() == (*before[:2], SELDOM)
        gc.collect()
        collections = gc.get_stats()[2]["collections"]
        kept = 0
        for _ in range(before[0] * before[1] * 20):
            Knot()
            kept = max(kept, gc.get_count()[0])
        assert kept <= 2 * before[0]
        assert gc.get_stats()[2]["collections"] == collections
    finally:
        gc.set_threshold(*before)
