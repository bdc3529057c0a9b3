"""`make fuzz-api`: schemathesis sends the daemon, over HTTPS, what its OpenAPI document allows and what it does not, as
an admin, a submitter, a viewer and without a token. Exits non-zero where an answer is a fault of the daemon, or is not
what the document says. `EXAMPLES=100` of each route and reader, beside those for each rule of the document; `SEED=7`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from tests.sim.harness import submit, training_world
from tests.support.console import console
from tests.support.https import Https
from tests.support.whole_api import token_of, whole

READERS = ("root", "ann", "eve", "")  # an admin, a submitter, a viewer, and who has no token
PROGRAM = Path(sys.executable).with_name("schemathesis")
LIMIT_S = 3600.0
# What it also checks, and what is no rule of ours.
LEFT_OUT = {
    # The rules of a job file are more than a JSON schema can say: what breaks one is refused with 422.
    "positive_data_acceptance": READERS,
    # Who has no token gets 401, whatever the method.
    "unsupported_method": ("",),
}


@dataclass(frozen=True)
class Tried:
    """What one reader sent."""

    cases: int
    routes: int
    findings: str  # "" for none; else what the program printed


@contextmanager
def an_api(folder: Path) -> Iterator[tuple[Https, dict[str, Any]]]:
    """All routes of a daemon with a job of ann and one without an owner, and its document without what is not tried."""
    world = training_world(1, 2, 4)
    submit(world, "anns", 1, 1, 2, owner="ann")
    with Https.started(folder / "state", world, make=whole) as https:
        status, document = https.get("/v1/openapi.json", token_of("eve"))
        assert status == 200
        # It has no end; tests/integration/test_following_a_job.py reads it.
        del document["paths"]["/v1/jobs/{name}/stream"]
        yield https, document


def try_as(reader: str, https: Https, document: dict[str, Any], folder: Path, examples: int, seed: int) -> Tried:
    """One reader. `folder`: for the program's files."""
    (folder / "document.json").write_text(json.dumps(document))
    (folder / "ca.pem").write_text(https.ca)
    token = [f"--header=Authorization: Bearer {token_of(reader)}"] if reader else []
    command = [
        str(PROGRAM), "run", "document.json", f"--url=https://localhost:{https.port}", "--tls-verify=ca.pem", *token,
        f"--exclude-checks={','.join(check for check, readers in LEFT_OUT.items() if reader in readers)}",
        f"--seed={seed}", f"--max-examples={examples}", "--phases=coverage,fuzzing", "--continue-on-failure",
        "--generation-database=none", "--report=json", "--report-json-path=report.json", "--no-color",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    try:
        report = json.loads((folder / "report.json").read_text())
    except (OSError, ValueError):  # it has not begun
        return Tried(0, 0, done.stdout + done.stderr)
    cases, routes = report["test_cases"]["generated"], report["operations"]["tested"]
    return Tried(cases, routes, done.stdout if done.returncode else "")


def main() -> int:
    """Exit code 0: no finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory(), processors=[])
    bad = 0
    for reader in READERS:
        with tempfile.TemporaryDirectory() as folder, an_api(Path(folder)) as (https, document):
            tried = try_as(reader, https, document, Path(folder), options.examples, options.seed)
        verdict = "findings" if tried.findings else "no finding"
        console.print(f"{reader or 'without a token'}: {tried.cases:,} requests to {tried.routes} routes: {verdict}")
        if tried.findings:
            console.print(tried.findings, markup=False)
        bad += bool(tried.findings)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
