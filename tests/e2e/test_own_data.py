"""Loaders with a position of their own, with real processes that come and go."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from spotsup_trainer.session.audit import parse

from tests.e2e.rounds import output, ranks, run_round
from tests.e2e.training import SAMPLES
from tests.exactness.membership import MODES, run
from tests.support.combinations import others_nightly


@pytest.mark.timeout(600)  # some thirty processes, one after the other
@pytest.mark.parametrize("mode", others_nightly(["fsdp"], MODES))
def test_membership_changes_leave_samples_and_weights_as_they_are(mode: str, tmp_path: Path) -> None:
    """A small `make exactness`."""
    outcome = run(mode, 4, 7, tmp_path)
    assert outcome.exact, outcome


@pytest.mark.nightly
def test_a_loader_that_ends_earlier_than_others_loses_no_sample(tmp_path: Path) -> None:
    """Four ranks have 11, 10, 10 and 10 samples in batches of 2: the first one has a step more. They park in it."""
    assert run_round(ranks(4, tmp_path, round=1, own_loaders="rank", epochs=2, steps=5)) == [0] * 4
    assert run_round(ranks(4, tmp_path, round=2, own_loaders="rank", epochs=2)) == [0] * 4
    assert counted(tmp_path) == dict.fromkeys(range(SAMPLES), 2)
    said = (
        "spotsup: the loader of rank 1, 2, 3 has ended in epoch 0, and others go on: until all have ended, it repeats"
    )
    assert output(tmp_path).count(said) == 2  # once in each round


@pytest.mark.nightly
def test_another_number_of_loaders_begins_the_epoch_again(tmp_path: Path) -> None:
    assert run_round(ranks(2, tmp_path, round=1, own_loaders="rank", steps=3)) == [0, 0]
    assert run_round(ranks(3, tmp_path, round=2, own_loaders="rank", epochs=1)) == [0, 0, 0]
    seen = counted(tmp_path)
    assert set(seen) == set(range(SAMPLES))
    assert sorted(set(seen.values())) == [1, 2]
    said = "spotsup: there were 2 ranks with loaders of their own, and there are 3 now, so their positions do not fit"
    assert output(tmp_path).count(said) == 1


def counted(folder: Path) -> dict[int, int]:
    """How often each sample was trained on."""
    lines = (line for path in (folder / "audit").iterdir() for line in parse(path.read_text()))
    return Counter(index for line in lines for index in line.indices)
