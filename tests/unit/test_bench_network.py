"""bench-network: the arithmetic of nccl-tests, the job that is made of a job, and the result in its log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsup_trainer import bench_network as sweep

from supervisor.cli import bench_network as command
from supervisor.errors import UsageError
from supervisor.spec import parse_spec


def test_bandwidths_are_those_of_nccl_tests() -> None:
    """Their doc/PERFORMANCE.md: algbw = size / time, and for all_reduce busbw = algbw * 2(n-1)/n."""
    row = sweep.row_of(1_000_000_000, 0.5, ranks=4)
    assert (row.algbw_gb_s, row.busbw_gb_s, row.time_us) == (2.0, 3.0, 500_000.0)
    assert sweep.row_of(4, 1e-6, ranks=1).busbw_gb_s == 0


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 30), st.integers(2, 10))
def test_sizes_are_whole_elements_in_geometric_steps(least: int, most: int, factor: int) -> None:
    found = list(sweep.sizes(least, most, factor))
    assert all(size % sweep.ELEMENT_BYTES == 0 and size > 0 for size in found)
    assert found == sorted(found)
    assert len(found) == len([n for n in range(64) if least * factor**n <= most])
    assert bool(found) == (least <= most)


@pytest.mark.parametrize(("text", "size"), [("512", 512), ("8k", 8192), ("64M", 1 << 26), ("1G", 1 << 30)])
def test_sizes_may_have_a_unit(text: str, size: int) -> None:
    assert command.size_of(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5M", "1T", "M", "64 MB"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not of the form 512, 8K, 64M or 1G"):
        command.size_of(text)


def test_the_sweep_runs_on_the_jobs_nodes_and_has_a_time_limit() -> None:
    job = {
        "name": "resnet50",
        "nodes": {"min": 2, "desired": 4, "max": 8, "spares": 1},
        "resources": {"gpu": "A100", "gpus_per_node": 8},
        "placement": {"cloud": "aws", "regions": ["us-east-1"]},
        "run": "train.py",
        "code": "src",
        "checkpoints": "/mnt/out",
        "start_after": "2026-12-24T22:00Z",
        "schedule": "0 22 * * *",
        "limits": {"hours": 48, "usd_per_hour": 12.0},
    }
    spec = parse_spec(command.network_spec(job, "1K", "1M"))
    assert spec.name == "resnet50-network"
    assert (spec.nodes.min, spec.nodes.desired, spec.nodes.max, spec.nodes.spares) == (4, 4, 4, 0)
    assert (spec.resources[0].gpu, spec.nproc_on(None), spec.placement.cloud) == ("A100", 8, "aws")
    assert spec.command == ("-m", command.MODULE, "--from-bytes", "1024", "--to-bytes", str(1 << 20))
    assert (spec.limits.hours, spec.limits.usd_per_hour) == (command.HOURS, 12.0)
    assert spec.checkpoints == "none"
    assert (spec.start_after, spec.schedule) == ("", "")


@pytest.mark.parametrize(("nodes", "wanted"), [(3, 3), ({"min": 2}, 2), ({"min": 1, "desired": 5}, 5)])
def test_nodes_may_be_a_number_or_a_mapping(nodes: Any, wanted: int) -> None:
    found = command.network_spec({"nodes": nodes}, "1K", "1K")
    assert parse_spec(found).nodes.min == wanted


def test_long_names_are_cut_to_valid_names() -> None:
    for name in ("a" * 40, "a-" * 16 + "b"):
        assert parse_spec(command.network_spec({"name": name, "nodes": 2}, "1K", "1K")).name.endswith("-network")


def test_a_descending_sweep_is_refused() -> None:
    with pytest.raises(UsageError, match="goes from 2M to 1M"):
        command.network_spec({"nodes": 2}, "2M", "1M")


def test_code_is_sent_only_if_the_environment_may_need_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x" * 10_000)
    for lock in ("requirements.txt", "uv.lock", "pyproject.toml"):
        (tmp_path / lock).write_text("")
    job = tmp_path / "job.yaml"
    text = "name: j1\nnodes: 2\nrun: train.py\n"
    job.write_text(text)
    with command.prepared(str(job), {}, "1K", "1K") as found:
        small = found.pack()
    for more in ("setup: pip install -r requirements.txt", "environment: requirements.txt", "environment: uv"):
        job.write_text(f"{text}{more}\n")
        with command.prepared(str(job), {}, "1K", "1K") as found:
            assert len(found.pack().data) > len(small.data)
    job.write_text(f"{text}environment: image\n")
    with command.prepared(str(job), {}, "1K", "1K") as found:
        assert found.pack() == small
    with command.prepared(None, {"nodes": 3}, "1K", "1K") as found:
        assert (found.spec["name"], found.spec["nodes"]["min"]) == ("bench-network", 3)
        assert found.pack() == small
    with (
        pytest.raises(UsageError, match="'resnet50' is not a job file"),
        command.prepared("resnet50", {}, "1", "1"),
    ):
        pass


def test_the_command_and_the_program_agree_on_where_the_result_is() -> None:
    assert command.RESULT_PREFIX == sweep.PREFIX
    assert sweep.__name__ == command.MODULE


def test_the_result_is_found_in_a_split_line_among_other_output() -> None:
    report = json.dumps({"ranks": 2, "rows": []})
    line = f"[rank0] {command.RESULT_PREFIX}{report}\n"
    chunks = [
        {"node": "n1", "chunk": "0", "text": f'{command.RESULT_PREFIX}{{"ranks": 1}}\nnoise\n{line[:30]}'},
        {"node": "n2", "chunk": "0", "text": "no end of line"},
        {"node": "n1", "chunk": "1", "text": line[30:]},
    ]
    assert command.result_in(chunks[:1]) == {"ranks": 1}
    assert command.result_in(chunks[1:2]) is None
    assert command.result_in(chunks) == {"ranks": 2, "rows": []}
