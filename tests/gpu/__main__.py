"""`make gpu`: what of spotsup works on this machine's NVIDIA GPUs. It needs Python 3.10 and torch, and nothing else.

    make gpu                       all checks; the report is build/gpu/report.md, and report.json
    make gpu ONLY=nvml,staging     these alone
    make gpu SECONDS=240           for all of them together; by default 540
    make gpu GPU_PYTHON=python3.12 another interpreter; by default python3
    make gpu OUT=folder            another place for the report
    make gpu DRY=1                 without a GPU: whether the checks themselves run, on the CPU

No network, no root. It changes no setting of a GPU. Each check is a process of its own with a share of the time, and
the report is written anew after each. Whatever a check has started ends with it, and all ends at SIGTERM or Ctrl-C.
`seen`: it was done, and came out right. `not seen`: this machine cannot show it, and the report says why. `not run`: no
time was left.

Exit code 0: no check failed. 1: one did. 3: there is no GPU (or no torch), and nothing was checked. 128 and a signal's
number: it was cut off.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.gpu.ending import adopt_orphans, run
from tests.gpu.place import ROOT, noted
from tests.gpu.plan import CHECKS, SECONDS, limit_s
from tests.gpu.report import Report, Row, failed, not_run

OUT = ROOT / "build" / "gpu"
NOTHING_CHECKED = 3
ASK_S = 120.0  # the first import of torch, from a cold disk
KEPT_BYTES = 1 << 20  # of each file that a check has left


class Signals:
    """The signal that asked to end; 0: none yet. Only noted here: the report must not be cut off as it is written."""

    def __init__(self) -> None:
        self.number = 0
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._note)

    def _note(self, number: int, _: object) -> None:
        self.number = number

    def came(self) -> bool:
        """True if one came."""
        return self.number != 0


def gpus(stopped: Callable[[], bool], limit: float = ASK_S) -> tuple[int, str]:
    """Return how many GPUs torch can use, and why none; asked in a process of its own, which may touch them."""
    if importlib.util.find_spec("torch") is None:
        return 0, f"{sys.executable} has no torch: name an interpreter that has it, make gpu GPU_PYTHON=..."
    program = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        ended = run([sys.executable, "-W", "ignore", "-c", program], os.environ, output, limit, stopped)
        lines = output.read_text(errors="replace").strip().splitlines()
    if ended.status is None:
        return 0, f"torch did not say within {limit:g} s whether there are GPUs"
    if ended.status or not lines or not lines[-1].isdigit():
        return 0, f"torch does not run here: {(lines or ['no output'])[-1]}"
    return int(lines[-1]), "torch finds no NVIDIA GPU on this machine" if lines[-1] == "0" else ""


def check(name: str, count: int, out: Path, limit: float, signals: Signals) -> Row:
    """Run one check within its limit; nothing of it is left after. Return its row."""
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "tests.gpu.checks", name, "--device", "cuda" if count else "cpu"]
    command += ["--gpus", str(count), "--folder", str(folder), "--seconds", f"{limit:.1f}"]
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'trainer'}"}
    environ |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    ended = run(command, environ, folder / "output", limit, signals.came)
    result = folder / "result.json"
    if result.is_file():
        row: Row = {**json.loads(result.read_text()), "seconds": ended.seconds}
    else:
        tail = (folder / "output").read_text(errors="replace")[-2000:]
        why = f"its process ended with {ended.status}"
        if ended.status is None:
            why = "it was cut off" if signals.came() else f"it took longer than {limit:g} s"
        row = failed(name, why, ended.seconds, noted(folder), tail)
    for large in [each for each in folder.rglob("*") if each.is_file() and each.stat().st_size > KEPT_BYTES]:
        large.unlink()  # checkpoints: the folder may have to travel
    if ended.left:
        row |= {"outcome": "failed", "why": f"processes have outlived SIGKILL: {', '.join(map(str, ended.left))}"}
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, and write the report after each."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="without a GPU, on the CPU")
    parser.add_argument("--only", default="", help="names of checks, separated by commas")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all of them together")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the report")
    options = parser.parse_args(arguments)
    asked = {each for each in options.only.split(",") if each}
    if unknown := sorted(asked - set(CHECKS)):
        parser.error(f"no check is named {', '.join(unknown)}; there are {', '.join(CHECKS)}")
    wanted = [name for name in CHECKS if not asked or name in asked]
    adopt_orphans()
    signals = Signals()
    count, why = (0, "") if options.dry else gpus(signals.came, min(ASK_S, options.seconds))
    if signals.came():
        return 128 + signals.number
    if why:
        print(f"nothing was checked: {why}")
        return NOTHING_CHECKED
    report = Report(options.out, options.dry, count, time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))
    for number, name in enumerate(wanted):
        report.write(f"{number} of {len(wanted)} checks are done; {name} is next.")
        limit = limit_s(began + options.seconds - time.monotonic(), wanted[number:])
        row = not_run(name) if limit is None else check(name, count, options.out, limit, signals)
        if signals.came():
            return _cut_off(report, row, wanted[number + 1 :], signals.number)
        report.rows.append(row)
        print(f"{name}: {row['outcome']} ({row['seconds']} s) {row.get('why', '').partition(chr(10))[0]}", flush=True)
    outcomes = [row["outcome"] for row in report.rows]
    report.write(f"All of it: {', '.join(f'{outcomes.count(each)} {each}' for each in dict.fromkeys(outcomes))}.")
    print(f"wrote {options.out / 'report.md'}")
    return 1 if "failed" in outcomes else 0


def _cut_off(report: Report, row: Row, left: Sequence[str], number: int) -> int:
    name = row["check"]
    report.unfinished = row
    report.write(f"Cut off by {signal.Signals(number).name} in {name}. Not run: {', '.join(left) or 'none'}.")
    print(f"cut off in {name}; wrote {report.folder / 'report.md'}", flush=True)
    return 128 + number


if __name__ == "__main__":
    sys.exit(main())
