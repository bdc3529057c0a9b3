"""Each GPU of the catalogue, by the name that its driver gives it: a machine that bootstrap refuses was billed."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path

import pytest

from provisioners.aws import types as aws
from provisioners.azure import types as azure
from provisioners.catalog import Catalog, load_catalog
from provisioners.gcp import types as gcp
from provisioners.gpu_names import is_named
from provisioners.refreshed import gpu_name, merged_types

# Our name -> (name, memory.total in MiB), as `nvidia-smi --query-gpu=name,memory.total` printed it in public logs.
RECORDED = {
    "T4": [("Tesla T4", 15360)],
    "T4G": [("NVIDIA T4G", 15360)],
    "P4": [("Tesla P4", 7680)],
    "P100": [("Tesla P100-PCIE-16GB", 16276)],
    "V100": [("Tesla V100-SXM2-16GB", 16160), ("Tesla V100-PCIE-16GB", 16384)],
    "V100-32GB": [("Tesla V100-SXM2-32GB", 32510)],
    "A10": [("NVIDIA A10-24Q", 24512)],  # Azure rents it as a vGPU
    "A10G": [("NVIDIA A10G", 23028)],
    "A100-40GB": [("NVIDIA A100-SXM4-40GB", 40536)],
    "A100-80GB": [("NVIDIA A100-SXM4-80GB", 81920), ("NVIDIA A100 80GB PCIe", 81920)],
    "L4": [("NVIDIA L4", 23034)],
    "L40S": [("NVIDIA L40S", 46068)],
    "H100": [("NVIDIA H100 80GB HBM3", 81559)],
    "H100-94GB": [("NVIDIA H100 NVL", 95830)],
    "H200": [("NVIDIA H200", 143771)],
    "B200": [("NVIDIA B200", 183359)],
    "B300": [("NVIDIA B300 SXM6 AC", 275040)],
    "GB200": [("NVIDIA GB200", 189471)],
    "GB300": [("NVIDIA GB300", 284208)],
    "RTXPRO4500": [("NVIDIA RTX PRO 4500 Blackwell Server Edition", 32623)],
    "RTXPRO6000": [
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887),
        ("NVIDIA RTX Pro 6000 Blackwell DC-4-96Q", 98304),  # Azure rents it as a vGPU
    ],
}
# The same GPU with more memory: our name without a size accepts each of them.
MORE_MEMORY = {("V100", "V100-32GB"), ("H100", "H100-94GB")}


def what_a_refresh_brings(known: Catalog) -> set[str]:
    """Our names of all GPUs that the clouds describe. EC2's descriptions are those that moto has recorded."""
    spec = importlib.util.find_spec("moto")
    assert spec is not None
    assert spec.origin is not None
    with gzip.open(Path(spec.origin).parent / "ec2" / "resources" / "instance_types.json.gz") as file:
        types, _ = merged_types(aws.described(json.load(file).values()), load_catalog(), "aws")
    told = [*gcp._GPUS.values(), *azure._GPUS.values()]
    return {each.gpu for each in types} | {gpu_name(name, gib, known.gpus) for name, gib in told}


def test_each_gpu_of_the_catalogue_has_a_recorded_name() -> None:
    known = load_catalog()
    rented = {each.gpu for cloud in known.clouds.values() for each in cloud.types}
    assert rented | set(known.gpus) | what_a_refresh_brings(known) == set(RECORDED)


@pytest.mark.parametrize("ours", RECORDED)
def test_a_gpu_is_accepted_as_itself_and_as_no_other(ours: str) -> None:
    for name, mib in RECORDED[ours]:
        accepted = {other for other in RECORDED if is_named(name, mib, other)}
        assert accepted == {ours} | {small for small, large in MORE_MEMORY if large == ours}, name


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("NVIDIA GH200 480GB", "H200"),
        ("NVIDIA A10", "A100-40GB"),
        ("NVIDIA L40", "L40S"),
        ("Tesla P40", "P4"),
        ("NVIDIA RTX PRO 5000 Blackwell", "RTXPRO6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTXPRO6000"),
        ("Quadro RTX 6000", "RTXPRO6000"),
        ("NVIDIA GB300", "B300"),
        ("NVIDIA GB200", "B200"),
    ],
)
def test_a_part_of_a_word_is_not_a_gpu(name: str, offered: str) -> None:
    assert not is_named(name, 0, offered)


@pytest.mark.parametrize(
    ("size", "ours"),
    [
        ("Standard_NC40ads_H100_v5", "H100"),
        ("Standard_ND96isr_H200_v5", "H200"),
        ("Standard_ND128isr_NDR_GB200_v6", "GB200"),
        ("Standard_ND128isr_GB300_v6", "GB300"),
        ("Standard_NC144ds_xl_RTXPRO6000BSE_v6", "RTXPRO6000"),
    ],
)
def test_azures_sizes_name_their_gpu(size: str, ours: str) -> None:
    has = [{"name": name, "value": "4"} for name in ("GPUs", "vCPUs", "MemoryGB")]
    (found,) = azure.described([{"name": size, "resourceType": "virtualMachines", "capabilities": has}])
    assert found.gpu == ours


@pytest.mark.parametrize("offered", ["RTX-PRO-6000", "RTXPRO6000-96GB", "rtx pro 6000"])
def test_a_catalogue_of_ones_own_may_separate_the_words(offered: str) -> None:
    assert is_named("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, offered)
