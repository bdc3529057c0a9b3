"""`make scenario`: a whole day of the platform in a simulated world, and its report. `--help` tells the options."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from spotsup_simulator.replay import recording as recordings

from supervisor.errors import UsageError
from tests.scenario.day import Day
from tests.scenario.facts import ROOT, broken, facts
from tests.scenario.page import html
from tests.scenario.story import SHORT, WHOLE
from tests.sim.promises import Violation
from tests.sim.run import quiet


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tests.scenario", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--recording", type=Path, help="availability of AWS's V100 zones, as spotsupd simulate reads it"
    )
    parser.add_argument("--short", action="store_true", help="a few jobs and hours")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build", help="the folder for scenario.html and scenario.json"
    )
    args = parser.parse_args(argv)
    quiet()
    try:
        recording = recordings.read(args.recording) if args.recording else None
    except UsageError as error:
        print(f"scenario: {error}", file=sys.stderr)
        return 2
    return run(Day(args.seed, SHORT if args.short else WHOLE, recording), _command(args), args.out)


def run(day: Day, command: str, out: Path) -> int:
    """Let the day pass, and write what came of it; 1 if a promise was broken."""
    try:
        day.play()
    except Violation as violation:
        return _write(out, broken(day, command, str(violation)))
    return _write(out, facts(day, command))


def _command(args: argparse.Namespace) -> str:
    recording = f" RECORDING={args.recording.name}" if args.recording else ""
    return f"make scenario SEED={args.seed}{' SHORT=1' if args.short else ''}{recording}"


def _write(out: Path, found: dict[str, Any]) -> int:
    out.mkdir(parents=True, exist_ok=True)
    (out / "scenario.json").write_text(json.dumps(found, indent=1))
    (out / "scenario.html").write_text(html(found))
    repeat = found["repeat"]
    if not found["ok"]:
        print(f"scenario: seed {repeat['seed']}: {found['violation']}")
        print(f"see {out / 'scenario.html'}; repeat: {repeat['command']}")
        return 1
    total, promises = found["total"], found["promises"]
    print(
        f"scenario: {total['jobs']} jobs, {repeat['hours']:g} virtual hours, seed {repeat['seed']}, digest "
        f"{repeat['digest']}: every promise kept in {promises['checks']:,} checks"
    )
    print(
        f"${total['usd']:,.2f} spent, {total['saved'] or 0:.0%} less than on demand; goodput "
        f"{total['goodput'] or 0:.1%}; {total['preempted']} machines taken, "
        f"{total['steps_lost']:,} steps made again; {repeat['cpu_s']:.0f} s of CPU"
    )
    print(f"see {out / 'scenario.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
