"""The mutants of `make sim-mutants` still fit the code that they change."""

from __future__ import annotations

import pytest

from tests.sim.mutants import mutated
from tests.sim.removed_rules import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_rule_that_a_mutant_removes_is_where_it_says(mutant: Mutant) -> None:
    assert mutated(mutant)


def test_text_that_has_moved_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"mutant moved: its text occurs 0 times in .*: update the mutant"):
        mutated(Mutant("moved", "tests.unit.test_sim_mutants", "not " + "here", ""))
