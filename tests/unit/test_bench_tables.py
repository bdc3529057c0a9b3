"""What `make bench-recovery` computes: pauses from the marks of all ranks, statistics, and the shape of its results."""

import io
import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from scripts.bench import results
from scripts.bench.results import Row, Sample, summarise
from scripts.bench.stock import DEFAULT, TUNED
from scripts.bench.timeline import Mark, MarkReader, Outcome, Span, Timeline, outcome, parse
from scripts.bench.watch import CHECKPOINT_STEPS, SETTLED_STEPS, Watched, steps_before_fault
from scripts.bench_recovery import FIRST, FULL, KILL, KILL_ALONE, LOST, PAUSED, samples_of

ROW_KEYS = {"case", "subject", "metric", "unit", "median", "min", "max", "n"}


def span(number: int, nodes: str, steps: tuple[int, int], times: tuple[float, float]) -> Span:
    return Span(number, tuple(nodes), *steps, *times)


def mark(t: float, step: int, rank: int, world: int = 2, round_: int = 1) -> Mark:
    return Mark(t, step, round_, f"node{rank}", rank, world)


# -- steps and rounds ------------------------------------------------------------------------------------------


def test_a_step_is_complete_when_the_last_rank_says_so() -> None:
    timeline = Timeline()
    timeline.add([mark(1.0, 7, 0), mark(2.0, 8, 0)])
    assert timeline.spans() == []
    timeline.add([mark(1.5, 7, 1)])
    assert timeline.spans() == [Span(1, ("node0", "node1"), 7, 7, 1.5, 1.5)]


def test_a_step_that_a_fault_left_half_done_is_not_complete() -> None:
    timeline = Timeline()
    timeline.add([mark(1.0, 1, 0), mark(1.1, 1, 1), mark(2.0, 2, 0)])
    timeline.add([mark(9.0, 2, 0, 1, round_=2)])
    assert [(found.last_step, found.last_at) for found in timeline.spans()] == [(1, 1.1), (2, 9.0)]


@given(st.permutations(["a"] * 5 + ["b"] * 5 + ["c"] * 5))
def test_rounds_do_not_depend_on_the_order_in_which_files_are_read(order: list[str]) -> None:
    """Each file is read in its own order, but some sooner than others."""
    timeline, read = Timeline(), dict.fromkeys("abc", 0)
    for node in order:
        rank, step = "abc".index(node), read[node] + 1
        read[node] = step
        timeline.add([Mark(step + rank / 10, step, 1, node, rank, 3)])
    assert timeline.spans() == [Span(1, ("a", "b", "c"), 1, 5, 1.2, 5.2)]


# -- what a fault cost -----------------------------------------------------------------------------------------


def test_survivors_go_on_and_a_replacement_joins() -> None:
    spans = [
        span(1, "abc", (1, 100), (0.0, 10.0)),
        span(2, "ac", (91, 200), (12.0, 20.0)),
        span(3, "acd", (201, 300), (20.5, 30.0)),
    ]
    assert outcome(spans, before=1, gone="b", full=3) == Outcome(2.0, 10.5, 2.5, 10)


def test_one_change_with_a_notice() -> None:
    spans = [span(1, "abc", (1, 100), (0.0, 10.0)), span(2, "acd", (101, 102), (10.25, 11.0))]
    assert outcome(spans, before=1, gone="b", full=3) == Outcome(0.25, 0.25, 0.25, 0)


def test_rounds_before_the_fault_are_not_counted() -> None:
    spans = [span(1, "ab", (1, 9), (0.0, 1.0)), span(2, "abc", (10, 19), (5.0, 6.0)), span(3, "ac", (20, 21), (7.0, 8))]
    assert outcome(spans, before=2, gone="b", full=2) == Outcome(1.0, 1.0, 1.0, 0)


def test_a_full_round_that_still_has_the_lost_node_is_not_the_end() -> None:
    spans = [span(1, "abc", (1, 9), (0.0, 1.0)), span(2, "abc", (10, 19), (2.0, 3.0))]
    assert outcome(spans, before=1, gone="b", full=3) == Outcome(1.0, None, None, None)


def test_a_job_that_never_trains_again() -> None:
    assert outcome([span(1, "abc", (1, 9), (0.0, 1.0))], before=1, gone="b", full=3) == Outcome()


def test_a_round_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="round 4 is not among the 1"):
        outcome([span(1, "abc", (1, 9), (0.0, 1.0))], before=4, gone="b", full=3)


# -- reading ---------------------------------------------------------------------------------------------------


def line(step: int) -> bytes:
    return json.dumps({"t": 1.0, "step": step, "round": 1, "node": "a", "rank": 0, "world": 1}).encode() + b"\n"


def test_a_line_that_is_not_written_yet_waits() -> None:
    whole, half = line(1), line(2)[:20]
    marks, length = parse(whole + half)
    assert ([found.step for found in marks], length) == ([1], len(whole))


def test_each_mark_is_read_once(tmp_path: Path) -> None:
    reader, file = MarkReader(tmp_path), tmp_path / "a.1.jsonl"
    assert reader.new() == []
    file.write_bytes(line(1) + line(2)[:5])
    assert [found.step for found in reader.new()] == [1]
    file.write_bytes(line(1) + line(2))
    (tmp_path / "b.1.jsonl").write_bytes(line(3))
    assert [found.step for found in reader.new()] == [2, 3]
    assert reader.new() == []


# -- statistics ------------------------------------------------------------------------------------------------


def sample(value: float | None, *, limit_s: float | None = 60.0, why: str = "", subject: str = "spotsup") -> Sample:
    return Sample("kill", subject, FIRST, "s", value, limit_s, why)


def test_rows_keep_the_order_of_their_first_samples() -> None:
    rows = summarise([sample(3.0), sample(9.0, subject="floor"), sample(1.0), sample(2.0)])
    assert [(row.subject, row.median, row.min, row.max, row.n) for row in rows] == [
        ("spotsup", 2.0, 1.0, 3.0, 3),
        ("floor", 9.0, 9.0, 9.0, 1),
    ]


def test_a_run_that_never_got_there_is_worse_than_any_other() -> None:
    missing = sample(None, why="watched for 60 s")
    (mostly,) = summarise([sample(5.0), missing, sample(6.0)])
    assert (mostly.median, mostly.min, mostly.max, mostly.n, mostly.never) == (6.0, 5.0, None, 3, 1)
    (never,) = summarise([missing, missing])
    assert (never.median, never.min, never.max, never.n, never.never) == (None, None, None, 2, 2)
    assert (never.limit_s, never.why) == (60.0, "watched for 60 s")


@given(st.lists(st.none() | st.floats(0, 1e6), min_size=1))
def test_statistics_are_ordered_numbers_or_none(values: list[float | None]) -> None:
    (row,) = summarise([sample(value) for value in values])
    known = [value for value in (row.min, row.median, row.max) if value is not None]
    assert all(low <= high for low, high in pairwise(known))
    assert row.never == values.count(None)
    assert (row.max is None) == (row.never > 0)
    assert (row.min is None) == (row.never == row.n)


def test_samples_of_a_fault_with_a_replacement() -> None:
    watched = Watched(Outcome(0.5, 4.0, 0.75, 12), 60.0, "")
    found = {each.metric: (each.value, each.unit) for each in samples_of("spotsup", KILL, watched)}
    assert found == {FIRST: (0.5, "s"), FULL: (4.0, "s"), PAUSED: (0.75, "s"), LOST: (12.0, "steps")}


def test_samples_of_a_fault_without_a_replacement() -> None:
    watched = Watched(Outcome(0.5, 0.5, 0.5, 12), 60.0, "")
    assert [each.metric for each in samples_of("spotsup", KILL_ALONE, watched)] == [FIRST, LOST]


def test_what_never_happened_is_told_but_nothing_that_rests_on_it() -> None:
    watched = Watched(Outcome(0.5), 60.0, "watched for 60 s")
    found = [(each.metric, each.value, each.limit_s) for each in samples_of("spotsup", KILL, watched)]
    assert found == [(FIRST, 0.5, 60.0), (FULL, None, 60.0)]


@pytest.mark.parametrize("repetitions", [1, 2, 3, 10])
def test_faults_are_spread_over_the_time_between_two_checkpoints(repetitions: int) -> None:
    steps = [steps_before_fault(repetition, repetitions) - SETTLED_STEPS for repetition in range(repetitions)]
    assert len(set(steps)) == repetitions
    assert all(0 < step < CHECKPOINT_STEPS for step in steps)
    assert sum(steps) / repetitions == pytest.approx(CHECKPOINT_STEPS / 2, abs=1)


# -- what is written and shown ---------------------------------------------------------------------------------

ROWS = [
    Row("cold start", "floor", FIRST, "s", 2.0, 1.9, 2.1, 3),
    Row("kill", "spotsup", FIRST, "s", 1.0, 0.9, 1.1, 3),
    Row("kill", "spotsup", LOST, "steps", 12.0, 3.0, 40.0, 3),
    Row("kill", DEFAULT.name, FIRST, "s", None, None, None, 1, 1, 60.0, "watched for 60 s"),
    Row("kill of rank 0", DEFAULT.name, FIRST, "s", None, None, None, 1, 1, None, "all other agents had ended"),
]


def test_the_file_has_the_shape_of_every_benchmark(tmp_path: Path) -> None:
    path = tmp_path / "bench" / "recovery.json"
    results.write(path, ROWS, {"cpus": 2}, {"floor": "three processes"})
    written = json.loads(path.read_text())
    assert set(written) == {"machine", "rows", "subjects"}
    assert [set(row) - ROW_KEYS for row in written["rows"]] == [set(), set(), set(), *[{"never", "limit_s", "why"}] * 2]
    assert all(set(row) >= ROW_KEYS for row in written["rows"])
    assert written["rows"][3] == ROWS[3].as_json()
    assert [path.name for path in path.parent.iterdir()] == ["recovery.json"]


def shown(rows: list[Row], width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(results.table("title", rows, 2.0))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_the_table_has_ratios_to_the_floor_and_says_what_never_happened() -> None:
    lines = [" ".join(text.split()) for text in shown(ROWS, 160)]
    assert f"{FIRST} spotsup 1.00 s 0.90 s 1.10 s 3 0.5" in lines
    assert f"{LOST} spotsup 12 3 40 3" in lines
    assert f"{DEFAULT.name} >60 s 1" in lines
    assert f"{FIRST} {DEFAULT.name} never 1" in lines
    assert [line for line in lines if line in {row.case for row in ROWS}] == ["cold start", "kill", "kill of rank 0"]


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    rows = [Row(KILL_ALONE.case, DEFAULT.name, FIRST, "s", 12.345, 10.0, 59.9, 3), *ROWS]
    assert [text.rstrip() for text in shown(rows, 80)] == [text.rstrip() for text in shown(rows, 160)]


def test_the_machine_is_described() -> None:
    about = results.machine()
    assert set(about) == {"cpus", "cpu_model", "memory_gib", "kernel", "python", "torch", "load_1min"}
    assert about["cpus"] >= 1
    assert about["memory_gib"] > 0


def test_the_settings_of_torchrun_are_told_in_words() -> None:
    assert DEFAULT.in_words() == "torchrun --rdzv-backend c10d --max-restarts 100"
    assert TUNED.in_words().startswith("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 ")
    assert "--rdzv-conf last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3" in TUNED.in_words()
