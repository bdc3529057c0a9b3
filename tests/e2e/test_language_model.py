"""The language model is sharded by FSDP2, goes on after a notice with the same losses, and on other worlds."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.e2e.ranks import EXAMPLES, Ranks, until_parked

PATH = EXAMPLES / "language_model.py"
STEPS = 12
SMALL = (
    *("--model", "tiny", "--steps", str(STEPS), "--global-batch", "16", "--micro-batch", "4", "--warmup", "3"),
    *("--lr", "0.01", "--workers", "0", "--log-every", "1", "--validate-every", "6", "--validate-batches", "2"),
)


def steps(said: str) -> dict[int, str]:
    """The line of each step."""
    return {int(number): line for number, line in re.findall(r"^step (\d+) (world .*)$", said, re.MULTILINE)}


def held_out(said: str) -> dict[int, float]:
    """The loss on what is not trained on, by step."""
    return {
        int(number): float(loss) for number, loss in re.findall(r"^step (\d+) held out ([\d.]+)$", said, re.MULTILINE)
    }


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The names in language_model.py."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return SimpleNamespace(**runpy.run_path(str(PATH)))


@pytest.mark.timeout(400)
def test_after_a_notice_the_losses_are_those_of_a_run_without_one_and_other_worlds_go_on(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("whole", "parts", "alone")]
    for folder in folders:
        folder.mkdir()
    with Ranks(PATH, folders[0], 2, *SMALL) as ranks:
        whole = ranks.end()
    before = steps("".join(until_parked(PATH, folders[1], 2, *SMALL)))
    assert 0 < len(before) < STEPS
    with Ranks(PATH, folders[1], 2, *SMALL) as ranks:
        after = ranks.end()
    assert not before.keys() & steps(after).keys()
    assert before | steps(after) == steps(whole)
    assert held_out(after)[STEPS] == held_out(whole)[STEPS] < held_out(whole)[6]


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_it_goes_on_alone_and_in_groups_that_hold_one_copy_each(tmp_path: Path) -> None:
    half = [*SMALL[:3], str(STEPS // 2), *SMALL[4:]]
    begun = steps("".join(until_parked(PATH, tmp_path, 2, *SMALL)))
    with Ranks(PATH, tmp_path, 4, *half, "--shards", "2") as ranks:
        groups = steps(ranks.end())
    with Ranks(PATH, tmp_path, 1, *SMALL) as ranks:
        alone = ranks.end()
    assert list(begun | groups | steps(alone)) == list(range(1, STEPS + 1))
    assert all(line.startswith("world 4") for line in groups.values())
    assert all(line.startswith("world 1") for line in steps(alone).values())
    assert held_out(alone)[STEPS] < 4.5, "5.5 before the first step"


def test_it_has_the_size_of_nanogpt(module: Any) -> None:
    with torch.device("meta"):
        model = module.GPT(50304, module.SHAPES["gpt2"])
    body = sum(each.numel() for each in model.parameters()) - model.output.weight.numel()
    assert body == 124_475_904, "GPT-2's, with a vocabulary of 50,304"


def test_tokens_are_mapped_each_in_one_window_and_held_out_ones_in_none(module: Any, tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    numbers = [(7919 * number) % 50257 for number in range(1000)]
    path.write_bytes(b"".join(number.to_bytes(2, "little") for number in numbers))
    trained, held = module.Tokens(path, 16), module.Tokens(path, 16, validation=True)
    assert (len(trained), len(held)) == (58, 4)
    assert trained[0].tolist() == numbers[16:33]
    assert held[0].tolist() == numbers[:17]
    assert max(numbers) > 1 << 15, "those beyond 15 bits come back, too"
    starts = sorted([*trained._starts, *held._starts])
    assert starts == [16 * each for each in range(62)]


def test_the_rate_rises_and_falls_to_a_tenth(module: Any) -> None:
    rates = [module.rate(step, 10, 100) for step in range(101)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)


def test_groups_that_do_not_come_out_even_are_refused(module: Any, tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(SystemExit, match="--shards 2 does not divide 1 processes"):
            module.mesh_of(torch.device("cpu"), 2)
    finally:
        torch.distributed.destroy_process_group()
