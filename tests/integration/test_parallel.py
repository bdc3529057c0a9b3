"""Which states a Session refuses because not all ranks are data-parallel. This process is rank 0 of four."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from spotsup_trainer.session.parallel import Dimension, Distributed, Mesh, distributed, misfit, place, refusal
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

WORLD = 4


@pytest.fixture(scope="module", autouse=True)
def ranks() -> Iterator[None]:
    """A process group whose other ranks do not exist, and whose collectives do nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())
        yield
        dist.destroy_process_group()


def mesh(*shape: int, names: tuple[str, ...] | None = None) -> DeviceMesh:
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4), nn.LayerNorm(4))


def tensor_parallel(over: DeviceMesh) -> nn.Module:
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    return parallelize_module(model(), over, plan)


def reason(made: nn.Module) -> str | None:
    return refusal(distributed({"net": made, "opt": torch.optim.SGD(made.parameters(), lr=0.1)}), WORLD)


def test_plain_modules_fsdp_and_hsdp_are_data_parallel() -> None:
    assert distributed({"net": model()}) == []
    assert reason(model()) is None
    assert reason(fully_shard(model())) is None
    for names in (("dp",), ("fsdp",), ("anything",), None):
        assert reason(fully_shard(model(), mesh=mesh(4, names=names))) is None
    for pair in (("dp_replicate", "dp_shard"), ("replicate", "shard"), ("outer", "inner")):
        assert reason(fully_shard(model(), mesh=mesh(2, 2, names=pair))) is None


def test_modules_of_which_only_parts_are_sharded_are_data_parallel() -> None:
    made = model()
    fully_shard(made[0])
    fully_shard(made)
    assert len(distributed({"net": made})) == 6
    assert reason(made) is None
    frozen = nn.ModuleDict({"frozen": model(), "trained": fully_shard(model())})
    assert reason(frozen) is None


def test_dimensions_of_one_rank_do_not_matter() -> None:
    whole = mesh(4, 1, names=("dp", "tp"))
    assert reason(fully_shard(tensor_parallel(whole["tp"]), mesh=whole["dp"])) is None


def test_tensor_parallelism_is_refused() -> None:
    assert reason(tensor_parallel(mesh(4, names=("tp",)))) == (
        "net.0.weight is a DTensor over the mesh dimension 'tp', which looks like tensor or context parallelism, but "
        "each rank would get samples of its own: write Session(..., mesh=mesh, data_dims=(...)) with the mesh of all "
        "ranks and the names of the dimensions along which samples differ, such as ('dp',)"
    )
    for names, where in (
        (("anything",), "net.0.weight is a DTensor over the mesh dimension 'anything', "),
        (None, "net.0.weight is a DTensor over a mesh dimension without a name, "),
    ):
        assert str(reason(tensor_parallel(mesh(4, names=names)))).startswith(where)
    norm = parallelize_module(nn.LayerNorm(4), mesh(4, names=("tp",)), SequenceParallel())
    assert "net.weight is a DTensor over the mesh dimension 'tp'" in str(reason(norm))


def test_tensor_parallelism_below_fsdp_is_refused() -> None:
    for names in (("dp", "tp"), ("first", "second")):
        whole = mesh(2, 2, names=names)
        made = fully_shard(tensor_parallel(whole[names[1]]), mesh=whole[names[0]])
        assert f"net.0.weight is a DTensor over the mesh dimension {names[1]!r}" in str(reason(made))


def test_meshes_that_leave_out_ranks_are_refused() -> None:
    """As of FSDP beside context parallelism that shards only activations."""
    made = fully_shard(model(), mesh=mesh(2, 2, names=("dp", "other"))["dp"])
    assert "net.0.weight is a DTensor over a mesh ('dp') of 2 of the 4 ranks, " in str(reason(made))
    unnamed = [Distributed("net.weight", (Dimension("", 2, replicated=False),), by_fsdp=True)]
    assert "over a mesh of 2 of the 4 ranks" in str(refusal(unnamed, 4))
    assert refusal(unnamed, 2) is None


def test_names_tell_where_placements_do_not() -> None:
    def is_data(*names: str) -> bool:
        dimensions = tuple(Dimension(name, 2, replicated=False) for name in names)
        return refusal([Distributed("w", dimensions, by_fsdp=False)], 2 ** len(names)) is None

    assert all(is_data(*names) for names in (("dp",), ("fsdp",), ("data_parallel",), ("dp_replicate", "dp_shard")))
    assert not any(
        is_data(*names) for names in (("dp_shard_cp",), ("dp", "cp"), ("pp",), ("data", "model"), ("x",), ("",))
    )


def test_places_along_data_dimensions() -> None:
    def places(*data_dims: str) -> list[tuple[int, int]]:
        names, sizes = ("dp_replicate", "dp_shard", "tp"), (2, 3, 2)
        coordinates = [(a, b, c) for a in range(2) for b in range(3) for c in range(2)]
        return [place(Mesh(names, sizes, coordinate), data_dims) for coordinate in coordinates]

    assert places("dp_replicate", "dp_shard", "tp") == [(rank, 12) for rank in range(12)]
    assert places("dp_shard", "dp_replicate") == places("dp_replicate", "dp_shard")
    assert places("dp_replicate", "dp_shard") == [(rank // 2, 6) for rank in range(12)]
    assert places("tp") == [(rank % 2, 2) for rank in range(12)]
    assert places() == [(0, 1)] * 12


def test_a_mesh_of_torch_is_read() -> None:
    assert Mesh.of(mesh(2, 2, names=("dp", "tp"))) == Mesh(("dp", "tp"), (2, 2), (0, 0))
    assert Mesh.of(mesh(4)).names is None


def test_meshes_that_do_not_tell_are_refused() -> None:
    whole = Mesh(("dp", "tp"), (2, 2), (0, 1))
    assert misfit(whole, ("dp",), 4) is None
    assert misfit(whole, (), 4) is None
    assert "the mesh has no names" in str(misfit(Mesh(None, (4,), (0,)), ("dp",), 4))
    assert misfit(whole, ("dp", "data"), 4) == "data_dims has 'data', but the mesh has the dimensions dp, tp"
    left_out = Mesh(("dp", "tp"), (2, 2), None)
    assert "the world size, 5, is not a multiple of 2, so the mesh (dp 2 x tp 2) leaves out ranks" in str(
        misfit(left_out, ("dp",), 5)
    )
    part = Mesh(("dp",), (2,), (0,))
    assert misfit(part, ("dp",), 4) == (
        "the mesh (dp 2) has 2 of the 4 ranks: give the Session the mesh of all ranks, not a part of it"
    )
