"""What `make bench-restore` makes of its arguments and measurements, and that no benchmark's table is cut."""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import pytest

from benchmarks.command import show
from benchmarks.restore.__main__ import EVERY, NOTES, ONCE, SIZES, SURVIVORS, Size, sentences, tables
from benchmarks.results import Row, table_of


def rows(case: str, survivors_s: float, every_s: float) -> list[Row]:
    found = []
    for subject, seconds in ((SURVIVORS, survivors_s), (ONCE, 2.0), (EVERY, every_s)):
        for metric, unit, value in (("restore", "s", seconds), ("storage", "GiB", 8.0), ("network", "GiB", 12.34)):
            found.append(Row(case, subject, metric, unit, value, value, value, 3))
    return found


@pytest.mark.parametrize(
    ("text", "size", "case"),
    [
        ("1x2", Size(1.0, 2), "1 GiB, 2 nodes, disk"),
        ("0.05x8", Size(0.05, 8), "0.05 GiB, 8 nodes, disk"),
        ("8x4-lean", Size(8.0, 4, lean=True), "8 GiB, 4 nodes, lean, disk"),
    ],
)
def test_a_size_is_written_and_shown_in_a_few_characters(text: str, size: Size, case: str) -> None:
    assert Size.parse(text) == size
    assert size.case("disk") == case


@pytest.mark.parametrize("text", ["", "8", "8x", "x2", "8x1", "0x2", "-1x2", "8x2-fat", "8x2-lean-lean", "nanx2"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"such as 1x2|2 nodes or more"):
        Size.parse(text)


def test_lean_needs_the_memory_of_two_states_whatever_the_number_of_nodes() -> None:
    assert Size(8, 2).needed_gib > 24, "two models and a snapshot"
    assert Size(8, 4).needed_gib > 56
    assert 16 < Size(8, 2, lean=True).needed_gib < Size(8, 4, lean=True).needed_gib < 20


def test_what_does_not_fit_is_said_and_not_measured() -> None:
    assert Size(8, 2, lean=True).left_out(20.0) == ""
    why = Size(32, 2, lean=True).left_out(20.0)
    assert why == "32 GiB, 2 nodes, lean: not measured: it needs 65.8 GiB of memory; 20.0 are free"


def test_it_measures_eight_gib_and_names_thirty_two() -> None:
    sizes = [Size.parse(text) for text in SIZES]
    assert {size.gib for size in sizes} >= {1, 8, 32}
    assert {size.nodes for size in sizes} >= {2, 4, 8}


def test_the_goal_is_three_times_as_fast_as_every_rank_from_storage() -> None:
    found = [*rows("8 GiB, 4 nodes, lean, disk", 2.0, 6.0), *rows("8 GiB, 2 nodes, lean, disk", 2.0, 5.6)]
    assert sentences(found) == [
        "8 GiB, 4 nodes, lean, disk: 3.0 times as fast as every rank from storage",
        "8 GiB, 2 nodes, lean, disk: 2.8 times as fast as every rank from storage: less than 3 times",
    ]
    assert sentences([]) == []


def test_no_table_is_cut_where_it_is_piped() -> None:
    """rich takes what is no terminal for 80 columns."""
    wide = table_of("Wide", ("case",), ("figure",))
    wide.add_row("a case " * 30, "9.87 s")
    file = io.StringIO()
    found = rows("32.125 GiB, 64 nodes, lean, 1.25 GB/s", 123.45, 1234.56)
    show([wide, *tables(found)], NOTES, Path("result.json"), file=file)
    text = file.getvalue()
    assert ("a case " * 30).strip() in text
    assert "…" not in text
    assert text.count("32.125 GiB, 64 nodes, lean, 1.25 GB/s") == 3
    assert text.count("12.34 GiB") == 3
    assert all(head in text for head in ("restore", "min", "max", "storage", "network"))
