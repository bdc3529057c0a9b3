"""Checkpoints that stay, and their weights for evaluation, export and other trainings."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from spotsup_trainer.session import Session, load_weights
from spotsup_trainer.session.checkpoint_dir import CheckpointError
from spotsup_trainer.session.weights import find, weights
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.integration.sessions import saved_steps, session, settled
from tests.support.disks import HangingFile
from tests.support.s3 import s3_here

pytestmark = pytest.mark.long

VALUES = (0.5, 0.3, 0.4, math.nan, 0.3, 0.2)


def test_one_of_every_so_many_steps_is_made_and_stays(tmp_path: Path) -> None:
    one = session(tmp_path, every_steps=4, keep=1, keep_every=10)
    for _ in range(23):
        one.step()
        settled(one)
    one.finish()
    assert saved_steps(tmp_path) == [10, 20, 23]
    with pytest.raises(ValueError, match="keep_every is 0"):
        session(tmp_path, keep_every=0)


def test_the_best_stays_until_a_better_one_is_complete_and_over_a_restart(tmp_path: Path) -> None:
    said = []
    for values in (VALUES[:3], VALUES[3:]):
        one = session(tmp_path, every_s=1000, keep=1)
        for value in values:
            one.step()
            said.append(one.save_best("loss", torch.tensor(value), mode="min"))
            one.step()
            assert one.save()
        assert find(tmp_path, best="loss").step == {3: 3, 6: 11}[len(said)]
    assert said == [True, True, False, False, False, True]
    assert saved_steps(tmp_path) == [11, 12]
    shutil.rmtree(tmp_path / "step_00000011")  # by hand: then it is no best any more
    one.step()
    assert one.save_best("loss", 0.9, mode="min")
    with pytest.raises(ValueError, match="mode is 'lowest'"):
        one.save_best("loss", 0.1, mode="lowest")  # type: ignore[arg-type]  # what a caller may do
    assert not session(None).save_best("loss", 0.1, mode="min")


def test_the_best_is_not_waited_for_longer_than_the_other_ranks_can(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one = session(tmp_path, every_s=1000)
    one.step()
    settled(one)
    assert one._checkpoints is not None
    one._checkpoints.timeout_s = 0.5
    owner = HangingFile(tmp_path / "OWNER")
    owner.inject()
    assert not one.save_best("loss", 0.5, mode="min")
    assert not one.save_best("loss", 0.4, mode="min")
    said = f"spotsup: the checkpoint directory {tmp_path} did not answer for 0.5 s: the last step is not compared"
    assert said in capfd.readouterr().err
    owner.repair()
    settled(one)
    assert one.save_best("loss", 0.3, mode="min")


def test_a_best_that_cannot_be_written_is_no_best(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one = session(tmp_path, every_s=1000, keep=1)
    one.step()
    assert one.save_best("loss", 0.5, mode="min")
    one.step()
    in_the_way = tmp_path / f"step_00000002.{one._checkpoints._dir._owner.token}.tmp"  # type: ignore[union-attr]
    in_the_way.touch()
    assert not one.save_best("loss", 0.3, mode="min")
    in_the_way.unlink()
    one.step()
    assert one.save_best("loss", 0.4, mode="min")
    assert saved_steps(tmp_path) == [1, 3]  # the one before goes with the next checkpoint
    one.step()
    one.finish()
    assert saved_steps(tmp_path) == [3, 4]
    assert "the checkpoint of step 2 could not be written" in capfd.readouterr().err


# -- weights -------------------------------------------------------------------------------------------------


def net(seed: int, *, head: int = 2, extra: bool = False) -> nn.Module:
    torch.manual_seed(seed)
    parts: dict[str, Any] = {"body": nn.Linear(3, 4), "norm": nn.BatchNorm1d(4), "head": nn.Linear(4, head)}
    return nn.ModuleDict(parts | ({"extra": nn.Linear(4, 1)} if extra else {}))


def saved(place: Any, steps: int = 1) -> nn.Module:
    """A module, as after its last step."""
    model = net(1)
    one = Session({"model": model, "other": nn.Linear(1, 1)}, checkpoints=place, every_s=1000, environ={})
    for step in range(steps):
        with torch.no_grad():
            model["body"].weight.fill_(step + 1)
        one.step()
        assert one.save_best("accuracy", step == 0, mode="max") == (step == 0)
    one.finish()
    return model


def test_weights_of_the_newest_the_best_and_a_step(tmp_path: Path) -> None:
    model = saved(tmp_path, 3)
    newest = weights(tmp_path)
    assert newest.keys() == model.state_dict().keys()
    assert all(torch.equal(newest[name], tensor) for name, tensor in model.state_dict().items())
    for chosen in ({"best": "accuracy"}, {"step": 1}):
        assert torch.equal(weights(tmp_path, **chosen)["body.weight"], torch.full((4, 3), 1.0))
    for wrong, reason in (
        ({"best": "loss"}, "no complete checkpoint that was the best by loss in "),
        ({"step": 2}, "no complete checkpoint of step 2 in "),
        ({"module": "net"}, "has no module 'net'; it has model, other: choose one by module="),
    ):
        with pytest.raises(CheckpointError, match=reason):
            weights(tmp_path, **wrong)
    next((tmp_path / "step_00000003").glob("*.distcp")).unlink()
    assert torch.equal(weights(tmp_path)["body.weight"], torch.full((4, 3), 1.0))
    with pytest.raises(CheckpointError, match=r"no complete checkpoint of step 3 in .* \| .*distcp does not exist"):
        weights(tmp_path, step=3)


def test_what_fits_is_loaded_and_the_rest_is_named(tmp_path: Path) -> None:
    saved(tmp_path)
    same = net(2)
    assert load_weights(same, tmp_path) == f"9 of 9 tensors of the model are in {tmp_path}/step_00000001"
    assert torch.equal(same["body"].weight, torch.full((4, 3), 1.0))
    other = net(3, head=5, extra=True)
    head = other["head"].weight.detach().clone()
    sentence = (
        f"7 of 11 tensors of the model are in {tmp_path}/step_00000001; not there: extra.bias, extra.weight; "
        "of another shape: head.bias, head.weight"
    )
    with pytest.raises(CheckpointError) as refused:
        load_weights(other, tmp_path)
    assert str(refused.value) == f"{sentence}. With strict=False, what fits is loaded"
    assert not torch.equal(other["body"].weight, torch.full((4, 3), 1.0))
    assert load_weights(other, tmp_path, strict=False) == sentence
    assert torch.equal(other["body"].weight, torch.full((4, 3), 1.0))
    assert torch.equal(other["head"].weight, head)
    assert "not in the model: body.bias, body.weight, head.bias" in load_weights(
        nn.ModuleDict({"norm": nn.BatchNorm1d(4)}), tmp_path, strict=False
    )


def test_weights_are_exported_to_a_file_and_loaded_from_one(tmp_path: Path) -> None:
    model = saved(tmp_path, 2)
    target = tmp_path / "weights.pt"
    command = [sys.executable, "-m", "spotsup_trainer.session.weights", str(tmp_path), str(target), "--best"]
    done = subprocess.run([*command, "accuracy"], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, f"{target}: 9 tensors\n"), done.stderr
    plain = net(4)
    plain.load_state_dict(torch.load(target))
    assert torch.equal(plain["body"].weight, torch.full((4, 3), 1.0))
    failed = subprocess.run([*command, "loss"], capture_output=True, text=True, check=False, timeout=120)
    assert failed.returncode == 1
    assert failed.stderr.startswith("weights: there is no complete checkpoint that was the best by loss in ")
    torch.save({"epoch": 3, "model": model.state_dict()}, target)
    assert load_weights(plain, target) == f"9 of 9 tensors of the model are in {target}"
    assert torch.equal(plain["body"].weight, torch.full((4, 3), 2.0))
    for wrong in (b"no tensors", None):
        if wrong is None:
            torch.save([1], target)
        else:
            target.write_bytes(wrong)
        with pytest.raises(CheckpointError, match=r"cannot be read as tensors|has no dictionary of tensors"):
            load_weights(plain, target)


def test_a_sharded_module_gets_its_part(tmp_path: Path) -> None:
    saved(tmp_path)
    whole = weights(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # the other rank does not exist
        dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
        try:
            model = net(5)
            for part in model.values():
                fully_shard(part)
            load_weights(model, tmp_path)
            for name, tensor in model.named_parameters():
                assert torch.equal(tensor.to_local(), whole[name].chunk(2)[0]), name
        finally:
            dist.destroy_process_group()


def test_weights_come_from_an_object_store(tmp_path: Path) -> None:
    with s3_here() as s3:
        saved(s3.place, 2)
        assert torch.equal(weights(s3.place, best="accuracy")["body.weight"], torch.full((4, 3), 1.0))
        assert load_weights(net(6), s3.place).startswith("9 of 9 tensors of the model are in s3://")
