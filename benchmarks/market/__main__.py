"""`make bench-market TRACES=…`: today's planner on recorded spot markets, beside an oracle that knows the recordings.

Each case is a process of its own; nothing but this computer's time is needed. Writes build/bench/market.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from rich.table import Table
from spotsup_simulator.replay.losses import AHEAD, CAUSES

from benchmarks import results
from benchmarks.command import count, measured, parser_of, show, stopwatch
from benchmarks.market import cases, deadlines, knobs, together
from benchmarks.market.cases import Case
from benchmarks.recovery.watch import BenchError, Stop
from benchmarks.results import Row, Sample
from tools.stack import ROOT

SPOTSUP, ORACLE = "spotsup", "oracle"
CASE_S = 3600.0
SHARED = frozenset(case.name for case in cases.WHOLE if case.jobs)
DUE = frozenset(case.name for case in cases.WHOLE if case.deadline_h)
HOURS, PRICE, REPEATED = "useful node-hours", "USD per useful node-hour", "node-hours repeated"
SUBJECTS = {
    SPOTSUP: "planner, loop and journal as in spotsupd, under a virtual clock; it learns by asking alone",
    "rigid": "the same planner with `min` as large as `desired`",
    "restart-all": "one lost node ends all; the whole set is asked for again (the rule of SkyPilot and of dstack)",
    ORACLE: "the best that can be done by who knows the recording",
    together.FCFS: "the same planner and limits; no job starts before those that were submitted before it",
}
NOTES = """\
of the oracle's: useful node-hours, and dollars for each, as a multiple of the oracle's with the same costs (boot 100 s,
  bootstrap 20 s, pause 5 s, checkpoint 2 s every 300 s, notice 120 s). CPU: of the daemon's replay alone.
shuffled: 6 h at a time in another order. shifted: each zone by another time. thinned: a fifth of each zone's hours
  grant nothing. scaled: twice as fast. goals: the worst seed counts.
deadlines: 48 h of work of one node, begun at 100 points of the 45 days, on-demand at $3.06. The oracle knows what
  comes, pays the same, and takes on-demand where that is best; its dollars are a lower bound.
several jobs: 20 of four users, of 1 to 64 nodes, submitted within 12 h, two fifths of them by one user. Limits: 64
  nodes in all, 48 of a user. Each machine of the recording counts as four, and costs $1 per hour. Fair share's wait:
  if each user had a fourth of what there is, for jobs in the order of submission; at least half an hour."""


@dataclass(frozen=True, slots=True)
class Task:
    """A case with one seed."""

    case: Case
    seed: int


# -- playing ---------------------------------------------------------------------------------------------------


def folder_of(given: str) -> Path:
    """The recordings' folder. Raises BenchError."""
    missing = sorted({name for case in cases.WHOLE for name in (case.file, case.prices) if name})
    if not given:
        raise BenchError(f"TRACES is not set: name a folder with {', '.join(missing)}: make bench-market TRACES=FOLDER")
    folder = Path(given).expanduser().absolute()
    if absent := [name for name in missing if not (folder / name).is_file()]:
        raise BenchError(f"{folder} has no {', '.join(absent)}: name the recordings' folder with TRACES=FOLDER")
    return folder


def play_all(options: argparse.Namespace, tasks: Sequence[Task], stop: Stop) -> dict[Task, dict[str, Any]]:
    """What came of each. Raises BenchError, InterruptedByUserError."""
    traces, waiting = folder_of(options.traces), list(reversed(tasks))
    running: dict[Task, tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]] = {}
    found: dict[Task, dict[str, Any]] = {}
    say = stopwatch()
    try:
        while waiting or running:
            while waiting and len(running) < options.processes:
                task = waiting.pop()
                running[task] = _begin(task, traces)
            ended = stop.until(
                lambda: [task for task, (process, *_) in running.items() if process.poll() is not None],
                CASE_S,
                lambda: f"{next(iter(running)).case.name} took more than {CASE_S:g} s",
            )
            for task in ended:
                found[task] = _end(task, *running.pop(task))
                say(f"{task.case.name}, seed {task.seed}: {found[task]['cpu_s']:.1f} s of CPU")
    finally:
        for process, *files in running.values():
            process.kill()
            process.wait()
            for file in files:
                file.close()
    return {task: found[task] for task in tasks}


def _begin(task: Task, traces: Path) -> tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]:
    asked = json.dumps({"case": asdict(task.case), "traces": str(traces), "seed": task.seed})
    output, errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - closed by `_end`
    command = [sys.executable, "-m", "benchmarks.market.play", asked]
    return subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=errors), output, errors


def _end(task: Task, process: subprocess.Popen[bytes], output: IO[bytes], errors: IO[bytes]) -> dict[str, Any]:
    with output, errors:
        for file in (output, errors):
            file.seek(0)
        if process.returncode:
            last = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise BenchError(f"{task.case.name}: {last or f'exit status {process.returncode}'}")
        answer: dict[str, Any] = json.loads(output.read())
        return answer


# -- what comes of it ------------------------------------------------------------------------------------------


def samples_of(case: Case, found: Mapping[str, Any]) -> Iterator[Sample]:
    """One play's numbers."""
    if case.knobs:
        for setting, metrics in found["knobs"].items():
            for metric, value in metrics.items():
                yield Sample(case.name, setting, metric, "1", value)
        yield Sample(case.name, SPOTSUP, cases.CPU, "s", found["cpu_s"])
        return
    if case.jobs or case.deadline_h:
        units = together.UNITS if case.jobs else deadlines.UNITS
        for policy, metrics in found["together" if case.jobs else "deadlines"].items():
            for metric, value in metrics.items():
                yield Sample(case.name, policy, metric, units[metric], value)
        yield Sample(case.name, SPOTSUP, cases.CPU, "s", found["cpu_s"])
        return
    by_policy = {result["policy"]: result for result in found["results"]}
    best = by_policy[ORACLE]
    for policy, result in by_policy.items():
        yield Sample(case.name, policy, HOURS, "h", result["useful_node_h"])
        if best["useful_node_h"]:
            yield Sample(case.name, policy, cases.USEFUL, "1", result["useful_node_h"] / best["useful_node_h"])
        price, least = result["usd_per_useful_node_h"], best["usd_per_useful_node_h"]
        if price is not None and least:
            yield Sample(case.name, policy, PRICE, "USD", price)
            yield Sample(case.name, policy, cases.USD, "1", price / least)
        yield Sample(case.name, policy, cases.REQUESTS, "1", result["requests"])
        yield Sample(case.name, policy, REPEATED, "h", result["lost_node_h"])
    yield Sample(case.name, SPOTSUP, cases.CPU, "s", found["cpu_s"])
    for cause, node_h in found["losses"].items():
        yield Sample(case.name, SPOTSUP, f"lost: {cause}", "h", node_h)


def verdicts(played: Sequence[Case], rows: Sequence[Row]) -> Iterator[str]:
    """Each goal of the cases that were played, one sentence each; the worst of all seeds counts."""
    found = {(row.case, row.metric): row for row in rows if row.subject == SPOTSUP}
    for goal in (goal for case in played for goal in cases.goals_of(case)):
        row = found.get((goal.case, goal.metric))
        worst = None if row is None else row.min if goal.at_least else row.max
        if worst is not None:
            bound, met = "at least" if goal.at_least else "at most", "met" if goal.met(worst) else "missed"
            yield f"{goal.case}: {goal.metric} {worst:g} (goal {bound} {goal.limit:g}): {met}"


def table(rows: Sequence[Row]) -> Table:
    """A line for each case of one job and policy."""
    rows = [row for row in rows if row.case not in SHARED | DUE]
    columns = (HOURS, cases.USEFUL, PRICE, cases.USD, cases.REQUESTS, REPEATED, cases.CPU)
    made = results.table_of("Recorded markets", ("", ""), columns)
    found = {(row.case, row.subject, row.metric): row for row in rows}
    for case, subject in dict.fromkeys((row.case, row.subject) for row in rows):
        made.add_row(case, subject, *(_shown(found.get((case, subject, column))) for column in columns))
    return made


def losses_table(rows: Sequence[Row]) -> Table:
    """Where each case lost node-hours that the oracle had."""
    rows = [row for row in rows if row.case not in SHARED | DUE]
    made = results.table_of("Node-hours that the oracle had, and spotsup had not", ("",), (*CAUSES, AHEAD))
    found = {(row.case, row.metric): row for row in rows if row.subject == SPOTSUP}
    for case in dict.fromkeys(row.case for row in rows):
        made.add_row(case, *(_shown(found.get((case, f"lost: {cause}"))) for cause in (*CAUSES, AHEAD)))
    return made


def jobs_table(rows: Sequence[Row]) -> Table:
    """A line for each metric of several jobs, with a column for each order in which they were let start."""
    made = results.table_of("Several jobs within limits", ("", ""), (SPOTSUP, together.FCFS))
    found = {(row.case, row.subject, row.metric): row for row in rows if row.case in SHARED}
    for case in dict.fromkeys(case for case, _, _ in found):
        for metric, unit in together.UNITS.items():
            shown = (_shown(found.get((case, subject, metric))) for subject in (SPOTSUP, together.FCFS))
            made.add_row(case, f"{metric}{f' ({unit})' if unit in {'h', 'USD'} else ''}", *shown)
    return made


def deadlines_table(rows: Sequence[Row]) -> Table:
    """A line for each metric of jobs with a deadline."""
    made = results.table_of("Jobs with a deadline", ("", ""), (SPOTSUP, ORACLE))
    found = {(row.case, row.subject, row.metric): row for row in rows if row.case in DUE}
    for case in dict.fromkeys(case for case, _, _ in found):
        for metric, unit in deadlines.UNITS.items():
            shown = (_shown(found.get((case, subject, metric))) for subject in (SPOTSUP, ORACLE))
            made.add_row(case, f"{metric}{f' ({unit})' if unit in {'h', 'USD'} else ''}", *shown)
    return made


def knobs_table(rows: Sequence[Row]) -> Table:
    """A line for each number of the policy: as it is, halved and doubled."""
    columns = ("now", *(f"{metric}, x{factor:g}" for factor in knobs.FACTORS for metric in knobs.METRICS))
    made = results.table_of("Numbers of the market's policy", ("",), columns)
    found = {(row.subject, row.metric): row for row in rows if row.case.startswith(cases.KNOBS.name)}
    if not found:
        return made
    made.add_row("all as they are", "", *(_shown(found.get((knobs.NOW, metric))) for metric in knobs.METRICS))
    for knob in knobs.KNOBS:
        keys = [(knobs.setting(knob, factor), metric) for factor in knobs.FACTORS for metric in knobs.METRICS]
        if any(key in found for key in keys):
            made.add_row(knob.name, f"{knob.value:g}", *(_shown(found.get(key)) for key in keys))
    return made


def _shown(row: Row | None) -> str:
    if row is None or row.median is None:
        return ""
    digits = {"h": 2, "nodes": 0, "jobs": 0, "requests": 0, "USD": 4, "s": 1}.get(
        row.unit, 0 if row.metric == cases.REQUESTS else 4
    )
    return f"{row.median:,.{digits}f}{' s' if row.unit == 's' else ''}"


def main() -> int:
    """Measure, write, show. Exit status 0 where everything could be played; 130 after Ctrl-C."""
    options, about = _parse(), results.machine()
    if options.knobs:
        named = ((f"{cases.KNOBS.name}, {group}", group) for group in knobs.GROUPS)
        played = [replace(cases.KNOBS, name=name, knobs=group) for name, group in named if options.only in name]
    else:
        played = cases.chosen(quick=options.quick, variants=not options.quick or options.variants, only=options.only)
    tasks = [Task(case, seed) for case in played for seed in range(1, options.seeds + 1)]
    found = measured("bench-market", lambda stop: play_all(options, tasks, stop))
    rows = results.summarise([sample for task in tasks for sample in samples_of(task.case, found[task])])
    judged = list(verdicts(played, rows))
    results.write(options.json, rows, about, SUBJECTS, {"verdicts": judged})
    if options.knobs:
        tables = [knobs_table(rows)]
    else:
        tables = [table(rows), losses_table(rows), jobs_table(rows), deadlines_table(rows)]
    tables = [each for each in tables if each.row_count]
    show(tables, NOTES, options.json, sentences=judged)
    return 0


def _parse() -> argparse.Namespace:
    parser = parser_of("market", __doc__)
    parser.add_argument("--traces", default=os.environ.get("TRACES", ""), help="the recordings' folder; else $TRACES")
    parser.add_argument(
        "--quick", action="store_true", help="10 days, 3 days and 11 h of the recordings: a few minutes"
    )
    parser.add_argument("--variants", action="store_true", help="with --quick: changed recordings, too")
    parser.add_argument("--knobs", action="store_true", help="halve and double each number of the policy instead")
    parser.add_argument("--only", default="", metavar="NAMES", help="cases whose names have one of these: p3,shifted")
    parser.add_argument("--seeds", type=count, default=1, metavar="N", help="play each case so often")
    parser.add_argument("--processes", type=count, default=len(os.sched_getaffinity(0)), metavar="N")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
