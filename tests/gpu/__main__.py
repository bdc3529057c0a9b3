"""`make gpu`: what of spotsup works on this machine's NVIDIA GPUs. It needs Python 3.10 and torch, and nothing else.

    make gpu                       all checks; the report is build/gpu/report.md, and report.json
    make gpu ONLY=nvml,staging     these alone
    make gpu GPU_PYTHON=python3.12 another interpreter; by default python3
    make gpu DRY=1                 without a GPU: whether the checks themselves run, on the CPU

No network, no root. It changes no setting of a GPU. Each check is a process of its own with a time limit. `seen`: it
was done, and came out right. `not seen`: this machine cannot show it, and the report says why.

Exit code 0: no check failed. 1: one did. 3: there is no GPU (or no torch), and nothing was checked.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "gpu"
LIMIT_S = 300.0
LIMITS_S = {"examples": 900.0, "kill-and-re-form": 600.0}
NOTHING_CHECKED = 3
NAMES = (
    *("machine", "nvml", "xid", "gpu-check", "fork-server", "nccl", "kill-and-re-form"),
    *("staging", "loss", "mixed-precision", "compile", "examples"),
)


def gpus() -> tuple[int, str]:
    """How many GPUs torch can use, and why none; in a process of its own, which may touch them."""
    if importlib.util.find_spec("torch") is None:
        return 0, f"{sys.executable} has no torch: name an interpreter that has it, make gpu GPU_PYTHON=..."
    program = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    count = done.stdout.strip()
    if done.returncode or not count.isdigit():
        return 0, f"torch does not run here: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"
    return int(count), "torch finds no NVIDIA GPU on this machine" if count == "0" else ""


def check(name: str, count: int, out: Path) -> dict[str, Any]:
    """Run one check within its time limit; nothing of it is left after."""
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    device = "cuda" if count else "cpu"
    command = [sys.executable, "-m", "tests.gpu.checks", name, "--device", device]
    command += ["--gpus", str(count), "--folder", str(folder)]
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'trainer'}", "GLOO_SOCKET_IFNAME": "lo"}
    limit_s = LIMITS_S.get(name, LIMIT_S)
    began = time.monotonic()
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environ,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        status: int | None = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        status = None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    result = folder / "result.json"
    if result.is_file():
        return dict(json.loads(result.read_text()))
    tail = (folder / "output").read_text(errors="replace")[-2000:]
    why = f"it took longer than {limit_s:g} s" if status is None else f"its process ended with {status}"
    seconds = round(time.monotonic() - began, 1)
    return {
        "check": name,
        "what": "",
        "device": device,
        "outcome": "failed",
        "why": why,
        "traceback": tail,
        "seconds": seconds,
    }


def markdown(rows: Sequence[dict[str, Any]], *, dry: bool, at: str) -> str:
    """The report."""
    lines = ["# What was seen on a GPU" if not dry else "# A dry run on the CPU: no GPU was used", "", at, ""]
    lines += ["| check | outcome | seconds | what it is |", "|---|---|---|---|"]
    lines += [
        f"| {row['check']} | {row['outcome']} | {row['seconds']} | {' '.join(row['what'].split())} |" for row in rows
    ]
    for row in rows:
        lines += ["", f"## {row['check']}", ""]
        lines += [f"{row['outcome']}: {row['why'].splitlines()[0]}"] if "why" in row else []
        lines += [f"- {name}: {value}" for name, value in row.get("facts", {}).items()]
        lines += ["", "```", row["traceback"].rstrip(), "```"] if "traceback" in row else []
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="without a GPU, on the CPU")
    parser.add_argument("--only", default="", help="names of checks, separated by commas")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the report")
    options = parser.parse_args(arguments)
    wanted = [each for each in options.only.split(",") if each] or list(NAMES)
    if unknown := sorted(set(wanted) - set(NAMES)):
        parser.error(f"no check is named {', '.join(unknown)}; there are {', '.join(NAMES)}")
    count, why = (0, "") if options.dry else gpus()
    if why:
        print(f"nothing was checked: {why}")
        return NOTHING_CHECKED
    rows = []
    for name in wanted:
        rows.append(check(name, count, options.out))
        print(
            f"{name}: {rows[-1]['outcome']} ({rows[-1]['seconds']} s) {rows[-1].get('why', '').partition(chr(10))[0]}",
            flush=True,
        )
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    (options.out / "report.json").write_text(
        json.dumps({"at": at, "dry": options.dry, "gpus": count, "checks": rows}, indent=2)
    )
    (options.out / "report.md").write_text(markdown(rows, dry=options.dry, at=at))
    print(f"wrote {options.out / 'report.md'}")
    return 1 if any(row["outcome"] == "failed" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
