"""The example that measures the network: the arithmetic of nccl-tests, and two processes under torchrun."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.e2e.launching import NODE_ENVIRON, NODE_PYTHON

SCRIPT = Path(__file__).resolve().parents[2] / "trainer" / "examples" / "all_reduce.py"


def _loaded() -> Any:
    spec = importlib.util.spec_from_file_location("all_reduce_example", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where dataclasses look it up
    spec.loader.exec_module(module)
    return module


example = _loaded()


def test_bandwidths_are_those_of_nccl_tests() -> None:
    """Their doc/PERFORMANCE.md: algbw = size / time, and for all_reduce busbw = algbw * 2(n-1)/n."""
    row = example.row_of(1_000_000_000, 0.5, ranks=4)
    assert (row.algbw_gb_s, row.busbw_gb_s, row.time_us) == (2.0, 3.0, 500_000.0)
    assert example.row_of(4, 1e-6, ranks=1).busbw_gb_s == 0


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 30))
def test_sizes_are_whole_elements_and_double(smallest: int, largest: int) -> None:
    found = list(example.sizes(smallest, largest))
    assert all(size % example.ELEMENT_BYTES == 0 and size > 0 for size in found)
    assert found == sorted(found)
    assert len(found) == len([n for n in range(64) if smallest * 2**n <= largest])


@pytest.mark.parametrize(("text", "size"), [("512", 512), ("8k", 8192), ("64M", 1 << 26), ("1G", 1 << 30)])
def test_sizes_may_have_a_unit(text: str, size: int) -> None:
    assert example.size_of(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5M", "1T", "M", "64 MB"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not of the form 512, 8K, 64M or 1G"):
        example.size_of(text)


@pytest.mark.long
def test_two_ranks_print_one_table_with_no_wrong_element() -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [NODE_PYTHON, *torchrun, str(SCRIPT), "--from", "4K", "--to", "64K"],
        env={**os.environ, **NODE_ENVIRON, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    head, *rows, last = done.stdout.splitlines()
    assert re.split(r" {2,}", head.strip())[0] == "size (B)"
    assert [int(row.split()[0]) for row in rows] == [4096, 8192, 16384, 32768, 65536]
    for size, count, time_us, algbw, busbw, wrong in (row.split() for row in rows):
        assert int(count) == int(size) // 4
        assert float(time_us) > 0
        assert busbw == algbw  # 2(n-1)/n of two ranks
        assert wrong == "0"
    assert re.match(r"all_reduce of float32 over 2 ranks on 1 nodes \(cpu\), gloo, torch .*; best bus bandwidth ", last)
