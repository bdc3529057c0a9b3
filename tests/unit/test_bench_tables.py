"""What `make bench-recovery` computes: pauses from the marks of all ranks, statistics, and the shape of its results."""

import io
import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.recovery import goals, grid
from benchmarks.recovery import table as recovery_table
from benchmarks.recovery.__main__ import SUBJECTS, in_order, parse_arguments, samples_of
from benchmarks.recovery.goals import FENCED, FIRST, FULL, LATE, LOST, PAUSED, Goal, judge
from benchmarks.recovery.grid import CELLS, OMISSIONS, Cell, Fault, Recovery, Victim, cells_of
from benchmarks.recovery.spotsup import Fence, is_steady
from benchmarks.recovery.stock import DEFAULT, TUNED
from benchmarks.recovery.timeline import Mark, MarkReader, Outcome, Span, Timeline, outcome, parse
from benchmarks.recovery.watch import CHECKPOINT_STEPS, Watched, due_after, phase_of
from benchmarks.results import Row, Sample, summarise

KILL = Cell(Fault.KILL, Victim.OTHER, Recovery.REPLACEMENT)
KILL_ALONE = Cell(Fault.KILL, Victim.OTHER, Recovery.SHRINKING)
FREEZE = Cell(Fault.FREEZE, Victim.OTHER, Recovery.SPARE)

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


BEFORE = span(1, "abc", (1, 100), (0.0, 10.0))


@pytest.mark.parametrize(
    ("later", "full", "expected"),
    [
        # survivors go on, and a replacement joins
        (
            [span(2, "ac", (91, 200), (12.0, 20.0)), span(3, "acd", (201, 300), (20.5, 30.0))],
            3,
            Outcome(2.0, 10.5, 2.5, 10),
        ),
        # one change, with a notice
        ([span(2, "acd", (101, 102), (10.25, 11.0))], 3, Outcome(0.25, 0.25, 0.25, 0)),
        # a full round that still has the lost node is not the end
        ([span(2, "abc", (101, 119), (11.0, 13.0))], 3, Outcome(1.0, None, None, None)),
        # it never trains again
        ([], 3, Outcome()),
    ],
)
def test_what_a_fault_cost(later: list[Span], full: int, expected: Outcome) -> None:
    assert outcome([BEFORE, *later], before=1, gone="b", full=full) == expected
    # Rounds before the fault are not counted.
    moved = [replace(each, round=each.round + 1) for each in (BEFORE, *later)]
    assert outcome([span(1, "ab", (1, 1), (-9.0, -9.0)), *moved], before=2, gone="b", full=full) == expected


def test_a_round_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="round 4 is not among the 1"):
        outcome([BEFORE], before=4, gone="b", full=3)


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


WHOLE = Outcome(0.5, 4.0, 0.75, 12)


@pytest.mark.parametrize(
    ("cell", "seen", "fence", "found"),
    [
        (KILL, WHOLE, None, {FIRST: 0.5, FULL: 4.0, PAUSED: 0.75, LOST: 12.0}),
        (KILL_ALONE, WHOLE, None, {FIRST: 0.5, LOST: 12.0}),  # no replacement
        (KILL, Outcome(0.5), None, {FIRST: 0.5, FULL: None}),  # nothing that rests on what never happened
        (FREEZE, WHOLE, Fence(0.3, 0), {FIRST: 0.5, FULL: 4.0, PAUSED: 0.75, LOST: 12.0, FENCED: 0.3, LATE: 0.0}),
        (FREEZE, WHOLE, Fence(None, 2), {FIRST: 0.5, FULL: 4.0, PAUSED: 0.75, LOST: 12.0, FENCED: None, LATE: 2.0}),
    ],
)
def test_the_samples_of_a_fault(cell: Cell, seen: Outcome, fence: Fence | None, found: dict[str, float | None]) -> None:
    samples = samples_of("spotsup", cell, Watched(seen, 60.0, ""), fence)
    assert {each.metric: each.value for each in samples} == found
    assert all((each.unit == "steps") is (each.metric in {LOST, LATE}) for each in samples)
    assert {each.limit_s for each in samples if each.value is None} <= {30.0 if fence else 60.0}


# -- when a fault is injected ---------------------------------------------------------------------------------


@pytest.mark.parametrize("repetitions", [1, 2, 3, 10])
def test_faults_are_spread_over_the_time_between_two_checkpoints(repetitions: int) -> None:
    phases = [phase_of(repetition, repetitions) for repetition in range(repetitions)]
    assert len(set(phases)) == repetitions
    assert all(0 < phase < CHECKPOINT_STEPS for phase in phases)
    assert sum(phases) / repetitions == pytest.approx(CHECKPOINT_STEPS / 2, abs=1)


@given(st.integers(0, 10**6), st.integers(0, CHECKPOINT_STEPS - 1))
def test_a_fault_strikes_at_the_next_step_of_its_phase(made: int, phase: int) -> None:
    due = due_after(made, phase)
    assert made <= due < made + CHECKPOINT_STEPS
    assert due % CHECKPOINT_STEPS == phase


@pytest.mark.parametrize(
    ("states", "spares", "steady"),
    [
        (["member", "member", "member"], 0, True),
        (["gone", "member", "member", "member", "gone"], 0, True),
        (["member", "member", "member", "ready"], 1, True),
        (["member", "member", "member", "bootstrapping"], 1, False),
        (["member", "member", "member"], 1, False),
        (["member", "member", "member", "ready"], 0, False),
        (["member", "member", "suspect"], 0, False),
    ],
)
def test_a_fault_waits_until_all_nodes_are_there_and_none_boots(states: list[str], spares: int, steady: bool) -> None:
    nodes = [{"id": f"n{number}", "job": "plain", "state": state} for number, state in enumerate(states)]
    nodes.append({"id": "o1", "job": "other", "state": "booting"})
    assert is_steady(nodes, "plain", spares) is steady
    there = next(node["id"] for node in nodes if node["state"] != "gone")
    assert not is_steady(nodes, "plain", spares, struck={there})


# -- what is measured ------------------------------------------------------------------------------------------

EVERY = [Cell(*each) for each in product(Fault, Victim, Recovery)]


@pytest.mark.parametrize("subject", list(CELLS))
def test_each_case_is_measured_or_it_is_said_why_not(subject: str) -> None:
    measured = {cell.case for cell in CELLS[subject]}
    assert len(measured) == len(CELLS[subject])
    for cell in EVERY:
        why = [each.why for each in OMISSIONS if each.subject == subject and each.covers(cell)]
        assert len(why) == (0 if cell.case in measured else 1), cell.case


def test_some_cases_are_measured_in_the_first_repetition_only() -> None:
    first, second = (cells_of(grid.SPOTSUP, repetition, list(Fault)) for repetition in (0, 1))
    assert first == list(CELLS[grid.SPOTSUP])
    assert second == [cell for cell in first if not cell.once]
    assert {cell.fault for cell in second} == set(Fault)


def test_only_some_faults_may_be_asked_for() -> None:
    assert {cell.fault for cell in cells_of(grid.SPOTSUP, 0, [Fault.FREEZE])} == {Fault.FREEZE}


def test_a_part_does_not_take_the_place_of_the_whole_result() -> None:
    assert parse_arguments([]).json.name == parse_arguments(["--quick"]).json.name == "recovery.json"
    for part in (["--only", "kill,freeze"], ["--subjects", "spotsup,floor"]):
        assert parse_arguments(part).json.name == "recovery-part.json"
    assert parse_arguments(["--only", "kill,freeze"]).only == (Fault.KILL, Fault.FREEZE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "kill,fire"], "'kill,fire': there are kill, freeze, SIGTERM, notice"),
        (["--only", ""], "there are kill"),
        (["--subjects", "torchrun"], "there are spotsup, spotsup-char, spotsup-launchers-warm"),
        (["--repeat", "0"], "'0' is not a whole number above 0"),
        (["--limit", "10"], "give 40 or more"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_arguments(arguments)
    assert message in capsys.readouterr().err


def test_cases_come_in_one_order_whoever_was_first() -> None:
    samples = [
        Sample(Cell(Fault.NOTICE, Victim.OTHER, Recovery.SPARE).case, grid.SPOTSUP, FIRST, "s", 1.0),
        Sample(Cell(Fault.KILL, Victim.FIRST, Recovery.SPARE).case, grid.SPOTSUP, FIRST, "s", 1.0),
        Sample(KILL.case, grid.DEFAULT, FIRST, "s", 1.0),
        Sample("cold start", grid.FLOOR, FIRST, "s", 1.0),
        Sample(KILL.case, grid.SPOTSUP, FIRST, "s", 1.0),
    ]
    assert in_order(samples) == [samples[place] for place in (3, 4, 2, 1, 0)]
    assert set(CELLS) | {grid.FLOOR, grid.FLOOR_SESSION} == set(SUBJECTS)


# -- goals -----------------------------------------------------------------------------------------------------


def row(subject: str, cell: Cell, metric: str, median: float | None, most: float | None = None) -> Row:
    unit = "steps" if metric in {LOST, LATE} else "s"
    return Row(cell.case, subject, metric, unit, median, median, median if most is None else most, 3)


SPARED = Cell(Fault.KILL, Victim.FIRST, Recovery.SPARE)
NOTICED = Cell(Fault.NOTICE, Victim.OTHER, Recovery.REPLACEMENT)
CHAR_KILLED, CHAR_NOTICED, CHAR_FROZEN = grid.CELLS[grid.SPOTSUP_CHAR]
WARM, SPARE = "tombstone and spare, warm: 0.3 s", "tombstone and spare: 1.3 floors"
SILENT, THAWED = "silent loss: lease + 1.3 floors", "a thawed node ends the step it froze in, at most"


def floor(subject: str, seconds: float) -> Row:
    return Row("cold start", subject, FIRST, "s", seconds, seconds, seconds, 3)


def met(*rows: Row) -> dict[str, bool]:
    """By goal, whether it is met."""
    found = judge(rows, lease_s=5.0)
    assert {goal.case for goal in found} <= {each.case for each in rows}
    return {goal.goal: goal.met for goal in found}


@pytest.mark.parametrize(
    ("measured", "goals_met"),
    [
        (row(grid.LAUNCHERS_WARM, SPARED, FIRST, 0.3), {WARM: True, SPARE: True}),
        (row(grid.LAUNCHERS_WARM, SPARED, FIRST, 2.6), {WARM: False, SPARE: True}),
        (row(grid.LAUNCHERS_WARM, SPARED, FIRST, 2.61), {WARM: False, SPARE: False}),
        (row(grid.LAUNCHERS_COLD, SPARED, FIRST, 2.6), {SPARE: True}),
        (row(grid.LAUNCHERS_COLD, SPARED, FIRST, 2.61), {SPARE: False}),
        (row(grid.LAUNCHERS_COLD_SESSION, SPARED, FIRST, 3.9), {"the same, of floor-session": True}),
        (row(grid.SPOTSUP, FREEZE, FIRST, 7.6), {SILENT: True}),
        (row(grid.SPOTSUP, FREEZE, FIRST, 7.61), {SILENT: False}),
        (row(grid.SPOTSUP, FREEZE, FIRST, None), {SILENT: False}),
        (row(grid.SPOTSUP, FREEZE, LATE, 0.0, 2.0), {THAWED: False}),
        (row(grid.SPOTSUP, NOTICED, PAUSED, 2.6), {"notice: 1.3 floors": True}),
        (row(grid.SPOTSUP, NOTICED, LOST, 0.0, 1.0), {"notice: no step lost": False}),  # not even once
        (row(grid.SPOTSUP_CHAR, CHAR_NOTICED, PAUSED, 0.3), {"char model, notice: 0.3 s": True}),
        (row(grid.SPOTSUP_CHAR, CHAR_NOTICED, PAUSED, 0.31), {"char model, notice: 0.3 s": False}),
        (row(grid.SPOTSUP_CHAR, CHAR_KILLED, FIRST, 6.0), {"char model, loss: lease + 1 s": True}),
        (row(grid.SPOTSUP_CHAR, CHAR_KILLED, FIRST, 6.01), {"char model, loss: lease + 1 s": False}),
        (row(grid.SPOTSUP_CHAR, CHAR_FROZEN, FIRST, 6.01), {"char model, loss: lease + 1 s": False}),
        (row(grid.SPOTSUP_CHAR, CHAR_FROZEN, FIRST, None), {"char model, loss: lease + 1 s": False}),
        (row(grid.TUNED, SPARED, FIRST, 9.0), {}),  # torchrun has no goals
    ],
)
def test_which_goals_are_met(measured: Row, goals_met: dict[str, bool]) -> None:
    assert met(floor(grid.FLOOR, 2.0), floor(grid.FLOOR_SESSION, 3.0), measured) == goals_met


def test_without_a_floor_nothing_is_judged_by_it() -> None:
    assert met(row(grid.LAUNCHERS_WARM, SPARED, FIRST, 0.2), row(grid.SPOTSUP, FREEZE, FIRST, 5.0)) == {WARM: True}


# -- what is written and shown ---------------------------------------------------------------------------------

RANK_0 = "kill, rank 0, replacement"
ROWS = [
    Row("cold start", "floor", FIRST, "s", 2.0, 1.9, 2.1, 3),
    Row(KILL.case, "spotsup", FIRST, "s", 1.0, 0.9, 1.1, 3),
    Row(KILL.case, "spotsup", FULL, "s", 4.0, 3.9, 4.1, 3),
    Row(KILL.case, "spotsup", PAUSED, "s", 1.2, 1.1, 1.3, 3),
    Row(KILL.case, "spotsup", LOST, "steps", 12.0, 3.0, 40.0, 3),
    Row(KILL.case, DEFAULT.name, FIRST, "s", None, None, None, 1, 1, 60.0, "watched for 60 s"),
    Row(RANK_0, DEFAULT.name, FIRST, "s", None, None, None, 1, 1, None, "all other agents had ended"),
]
GOALS = [Goal("no step lost", "spotsup", KILL.case, LOST, "max", "steps", 0.0, 0.0)]


def test_the_file_has_the_shape_of_every_benchmark(tmp_path: Path) -> None:
    path = tmp_path / "bench" / "recovery.json"
    more = {"goals": [goal.as_json() for goal in GOALS]}
    results.write(path, ROWS, {"cpus": 2}, {"floor": "three processes"}, more)
    written = json.loads(path.read_text())
    assert set(written) == {"machine", "rows", "subjects", "goals"}
    extra = [set(row) - ROW_KEYS for row in written["rows"]]
    assert extra == [*[set()] * 5, *[{"never", "limit_s", "why"}] * 2]
    assert all(set(row) >= ROW_KEYS for row in written["rows"])
    assert written["rows"][5] == ROWS[5].as_json()
    assert (written["goals"][0]["value"], written["goals"][0]["met"]) == (0.0, True)
    assert [path.name for path in path.parent.iterdir()] == ["recovery.json"]


def shown(table: Table, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_table_has_a_line_per_subject_below_what_was_done_to_it() -> None:
    lines = [" ".join(text.split()) for text in shown(recovery_table.table(ROWS), 160)]
    assert "spotsup 1.00 s 0.90-1.10 4.00 s 1.20 s 12 3 0.5" in lines
    assert f"{DEFAULT.name} >60 s 1" in lines
    assert f"{DEFAULT.name} never 1" in lines
    heads = {"cold start", "kill", "rank 1, replacement", "rank 0, replacement"}
    assert [line for line in lines if line in heads] == [
        "cold start",
        "kill",
        "rank 1, replacement",
        "rank 0, replacement",
    ]


def test_what_is_shown_fits_a_terminal_of_80_columns() -> None:
    subjects = list(SUBJECTS)
    rows = [
        Row(KILL.case, subject, metric, "steps" if metric == LOST else "s", 12.345, 10.0, 59.9, 10)
        for subject in subjects
        for metric in (FIRST, FULL, PAUSED, LOST)
    ]
    longest = max((cell for cells in CELLS.values() for cell in cells), key=lambda cell: len(cell.case))
    judged = [
        Goal("silent loss: lease + 1.3 floors", subject, longest.case, FIRST, "median", "s", 12.345, 10.0)
        for subject in subjects
    ]
    for table in (recovery_table.table([*ROWS, *rows]), goals.table(judged)):
        assert shown(table, 80) == shown(table, 160)


def test_a_goal_is_shown_with_its_figure() -> None:
    missed = Goal("no step lost", "spotsup", SPARED.case, LOST, "max", "steps", None, 0.0)
    lines = [" ".join(text.split()) for text in shown(goals.table([*GOALS, missed]), 100)]
    assert lines[-3:] == [
        "no step lost",
        "spotsup rank 1, replacement 0 0 met",
        "spotsup rank 0, spare never 0 missed",
    ]


def test_the_machine_is_described() -> None:
    about = results.machine()
    assert set(about) == {"cpus", "cpu_model", "memory_gib", "kernel", "python", "torch", "load_1min"}
    assert about["cpus"] >= 1
    assert about["memory_gib"] > 0


def test_the_settings_of_torchrun_are_refused_in_words() -> None:
    assert DEFAULT.describe() == "torchrun --rdzv-backend c10d --max-restarts 100"
    assert TUNED.describe().startswith("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 ")
    assert "--rdzv-conf last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3" in TUNED.describe()
