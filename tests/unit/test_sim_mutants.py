"""The mutants of `make sim-mutants` still fit the code that they change."""

from __future__ import annotations

import pytest

from tests.sim.mutants import mutated
from tests.sim.removed_rules import MUTANTS, Mutant


def test_the_rules_that_mutants_remove_are_where_they_say() -> None:
    moved = []
    for mutant in MUTANTS:
        try:
            assert mutated(mutant)
        except ValueError as error:
            moved.append(str(error))
    assert moved == []


def test_text_that_has_moved_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"mutant moved: its text occurs 0 times in .*: update the mutant"):
        mutated(Mutant("moved", "tests.unit.test_sim_mutants", "not " + "here", ""))
