"""`make fuzz`: broken messages, records, names of keys and descriptions of machines against the real reader, planner
and loop (target.py). Exits non-zero on a finding; writes build/fuzz.json. `MINUTES=10`, or `INPUTS=1000000`."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import structlog
from rich.table import Table

from tests.fuzz.target import Target
from tests.mutation.run import shared
from tests.support.console import console, write_result

REPORT = Path(__file__).resolve().parents[2] / "build/fuzz.json"
MAX_FINDINGS = 5


def fuzz(seed: int, inputs: int, seconds: float) -> dict[str, Any]:
    """One process's share: until it had so many inputs, or for so long."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory(), processors=[])
    target, rng, until = Target(), Random(seed), time.monotonic() + seconds
    findings: list[str] = []
    ticks, began = 0, time.process_time()
    while target.inputs.total() < inputs and time.monotonic() < until and len(findings) < MAX_FINDINGS:
        ticks += 1
        try:
            found = target.fuzz(rng)
        except Exception as error:  # noqa: BLE001 - our own: the inputs or the views of the API
            found = "".join(traceback.format_exception(error))
        if found:
            findings.append(f"seed {seed}, tick {ticks}: {found}")
    cpu_s = time.process_time() - began
    return {
        "inputs": target.inputs,
        "decoded": target.decoded,
        "contained": target.contained,
        "findings": findings,
        "ticks": ticks,
        "cpu_s": cpu_s,
    }


def main() -> int:
    """Exit code 0: no finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--inputs", type=int, default=10**12)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    workers = os.cpu_count() or 1
    each = -(-options.inputs // workers)
    parts = shared(workers, lambda number: fuzz(options.seed + number, each, options.minutes * 60), workers)
    inputs, decoded, contained = (sum((Counter(part[key]) for part in parts), Counter[str]()) for key in _COUNTED)
    findings = [text for part in parts for text in part["findings"]]
    table = Table("kind", "inputs", "still decoded", title=f"{inputs.total():,} broken inputs")
    for kind, count in sorted(inputs.items()):
        table.add_row(kind, f"{count:,}", f"{decoded[kind]:,}")
    console.print(table)
    ticks, cpu_s = sum(part["ticks"] for part in parts), sum(part["cpu_s"] for part in parts)
    console.print(f"{ticks:,} ticks of the loop, {cpu_s:.0f} s of CPU; decisions about a broken record contained:")
    console.print("\n".join(f"  {count:,} x {text}" for text, count in contained.most_common(10)) or "  none")
    console.print(
        "\n".join(text[:3000] for text in findings) or "nothing escaped, no other decision changed", markup=False
    )
    content = {
        "ok": not findings,
        "seed": options.seed,
        "inputs": inputs.total(),
        "ticks": ticks,
        "cpu_s": round(cpu_s, 1),
        "kinds": inputs,
        "decoded": decoded,
        "contained": contained,
        "findings": findings,
    }
    write_result(REPORT, content)
    return 1 if findings else 0


_COUNTED = ("inputs", "decoded", "contained")

if __name__ == "__main__":
    sys.exit(main())
