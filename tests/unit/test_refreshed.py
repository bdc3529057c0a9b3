"""The catalogue that clouds describe themselves: pure functions."""

from __future__ import annotations

import pytest

from provisioners.base import Market
from provisioners.catalog import Gpu, MachineType, load_catalog
from provisioners.refreshed import Described, gpu_name, merged_types, text_of

KNOWN = {"A100-40GB": Gpu(memory_gib=40), "A100-80GB": Gpu(memory_gib=80), "L4": Gpu(memory_gib=24)}


@pytest.mark.parametrize(
    ("name", "gib", "ours"),
    [
        ("A100", 40.0, "A100-40GB"),
        ("A100", 80.0, "A100-80GB"),
        ("L4", 22.4, "L4"),
        ("L4", 48.0, "L4-48GB"),
        ("R100", 288.0, "R100"),
        ("R100", None, "R100"),
        ("R 100", None, "R100"),
    ],
)
def test_gpus_get_our_names(name: str, gib: float | None, ours: str) -> None:
    assert gpu_name(name, gib, KNOWN) == ours


def test_what_a_cloud_does_not_describe_stays_as_it_is_known() -> None:
    known = load_catalog()
    found = [Described(MachineType(name="a4-highgpu-8g", gpus=8, vcpus=300), "B200", 180.0)]
    (machine,), gpus = merged_types(found, known, "gcp")
    assert (machine.markets, machine.vcpus, machine.gpu) == ((Market.SPOT,), 300, "B200")
    assert not gpus


def test_names_that_break_the_file_are_refused() -> None:
    for name in ('a"b', "a\nb", "a\\b"):
        with pytest.raises(ValueError, match="is not a name"):
            text_of("aws", "EC2", [MachineType(name=name, gpu="L4", gpus=1)], {}, 0.0)
    with pytest.raises(ValueError, match="name of a GPU"):
        text_of("aws", "EC2", [], {"[x]": Gpu(memory_gib=1)}, 0.0)
