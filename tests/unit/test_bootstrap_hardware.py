"""GPUs and networks: what the texts of a machine are read as, when GPUs are checked again, and what the agent gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bootstrap.decision import env_script
from bootstrap.facts import Facts
from bootstrap.gpu.facts import GpuFacts, read_gpu
from bootstrap.gpu.step import Condition, check_key, diagnose, flavour_for, has_nvlink5_switches
from bootstrap.model import Skip
from bootstrap.network.facts import read_default_route
from bootstrap.steps import agent_key, plan
from provisioners.gpu_names import is_named
from tests.support.hosts import host_on
from tests.support.plans import GOLDEN, a_setup, gpu_facts_of, network_facts_of, read

CASES = sorted((GOLDEN / "gpu").glob("*.json"))
STEPS = ("gpu", "gpu-check")


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_job_without_gpus_is_never_stopped_by_one(path: Path) -> None:
    planned = plan(gpu_facts_of(read(path)), a_setup(host=host_on("aws", "", 0)))
    assert all(isinstance(step.decision, Skip) for step in planned if step.name in STEPS)


def test_the_gpu_check_runs_once_per_boot_and_interpreter() -> None:
    case = read(GOLDEN / "gpu" / "aws_image_t4.json")
    facts, setup = gpu_facts_of(case), a_setup(host=host_on(**case["host"]))
    checked = replace(facts, gpu=replace(facts.gpu, checked=check_key(facts, setup)))

    def asks(facts: Facts) -> bool:
        return any(step.name == "gpu-check" and isinstance(step.decision, tuple) for step in plan(facts, setup))

    assert asks(facts)
    assert not asks(checked)
    assert asks(replace(checked, boot_id="another"))
    assert asks(replace(checked, python="/opt/venv/bin/python"))


def test_each_gpu_generation_gets_kernel_modules_that_drive_it() -> None:
    assert flavour_for((0x1B38,)) == "proprietary"  # P40
    assert flavour_for((0x1DB1,)) == "proprietary"  # V100
    assert flavour_for((0x1EB8,)) == "open"  # T4
    assert flavour_for((0x20B0, 0x20B0)) == "open"  # A100
    assert flavour_for((0x2330,)) == "open"  # H100
    assert flavour_for((0x2901,)) == "open"  # B200
    assert flavour_for((0x1DB1, 0x1EB8)) == "proprietary"


@pytest.mark.parametrize(
    ("devices", "bridges", "needed"),
    [
        ((0x2901,) * 8, 2, True),  # B200
        ((0x3182,) * 8, 4, True),  # B300
        ((0x2901,) * 8, 0, False),  # the switches are set up outside the machine
        ((0x3182,) * 4, 2, False),  # half of a baseboard
        ((0x2941,) * 4, 4, False),  # GB200
        ((0x31C2,) * 8, 4, False),  # GB300
        ((0x2335,) * 8, 8, False),  # H200: its switches are on the bus
    ],
)
def test_who_sets_up_switches_that_are_not_on_the_bus(devices: tuple[int, ...], bridges: int, needed: bool) -> None:
    assert has_nvlink5_switches(GpuFacts(devices=devices, bridges=bridges)) is needed


@pytest.mark.parametrize(
    ("name", "memory_mib", "offered", "right"),
    [
        ("Tesla T4", 15360, "T4", True),
        ("NVIDIA A10G", 23028, "A10G", True),
        ("NVIDIA A10G", 23028, "A10", False),
        ("NVIDIA A10-24Q", 24512, "A10", True),
        ("NVIDIA A100-SXM4-40GB", 40536, "A100-40GB", True),
        ("NVIDIA A100 80GB PCIe", 81920, "A100-80GB", True),
        ("NVIDIA A100-SXM4-80GB", 81251, "A100-40GB", False),
        ("Tesla V100-SXM2-32GB", 32510, "V100-32GB", True),
        ("NVIDIA H100 NVL", 95830, "H100-94GB", True),
        ("NVIDIA H100 80GB HBM3", 81559, "H100-94GB", False),
        ("NVIDIA H200", 143771, "H100", False),
        ("NVIDIA RTX 6000 Ada Generation", 49140, "RTX-6000-Ada", True),
        ("NVIDIA L4", 0, "L4-24GB", True),  # it does not say how much
        ("NVIDIA L4", 23034, "", True),  # a type that is not in the catalog
    ],
)
def test_gpu_names_are_compared_with_the_catalogue(name: str, memory_mib: int, offered: str, right: bool) -> None:
    assert is_named(name, memory_mib, offered) is right


def test_nvidia_smi_that_was_killed_by_its_time_limit_counts_as_hanging() -> None:
    for status in ("hung", "124", "137"):
        found = read_gpu({"pci": "0000:00:1e.0 0x1eb8 0x030200", "smi": "", "smi_status": status})
        assert diagnose(found).condition is Condition.UNHEALTHY
        assert "did not end" in diagnose(found).reason


# -- networks ------------------------------------------------------------------------------------------------


def test_the_agent_gets_the_variables_and_the_job_overrides_them() -> None:
    facts = network_facts_of(read(GOLDEN / "network" / "aws_image_efa.json"))
    host = host_on("aws", "A100-40GB", 8)
    text = env_script(facts, a_setup(host=host, env={"NCCL_SOCKET_IFNAME": "mine", "LR": "0.1"})).decode()
    assert "export FI_PROVIDER=efa\n" in text
    assert "export NCCL_SOCKET_IFNAME=mine\n" in text
    assert "export LR=0.1\n" in text
    on_another = replace(facts, network=replace(facts.network, interface="ens6"))
    assert agent_key(facts, a_setup(host=host)) != agent_key(on_another, a_setup(host=host))


def test_the_default_route_is_the_one_with_the_lowest_metric() -> None:
    head = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
    rows = "ens6 00000000 01101FAC 0003 0 0 200 00000000 0 0 0\nens5 00000000 01101FAC 0003 0 0 100 00000000 0 0 0\n"
    assert read_default_route(head + rows) == "ens5"
    assert read_default_route(head + "ens5 00101FAC 00000000 0001 0 0 100 00F0FFFF 0 0 0\n") == ""
    assert read_default_route("") == ""
