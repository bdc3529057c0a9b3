"""`spotsupctl bench-network`: measures the network between nodes like those of a job.

The sweep is a separate job with the same resources: docs/decisions/0012-bench-network.md.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from spotsup.upload import upload

from supervisor.cli.common import (
    ENDED,
    FOLLOW_S,
    all_output,
    connected,
    job_path,
    output_option,
    print_json,
    warn,
)
from supervisor.cli.job_options import spec_options
from supervisor.cli.submission import Prepared, prepare
from supervisor.errors import SpotsupError, UsageError

if TYPE_CHECKING:
    from spotsup.transport import Transport

MODULE = "spotsup_trainer.bench_network"
RESULT_PREFIX = "spotsup-bench-network "  # as in MODULE, which needs torch and cannot be loaded here
HOURS = 0.5  # the job's own limit, in case this command dies before it can cancel the job
LOG_WAIT_S = 30.0  # the end of a log arrives after the job's end
SUFFIX = "-network"
MAX_NAME = 40

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_LEFT_OUT = frozenset({"code", "kind", "start_after", "schedule", "finish_by", "work"})


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """An optional job file, and the options of `submit`."""
    return click.argument("job", required=False, metavar="[JOB.yaml]")(spec_options(command))


@click.command("bench-network")
@_options
@click.option(
    "--from", "smallest", default="1K", show_default=True, help="The smallest message, in bytes or with K, M, G."
)
@click.option("--to", "largest", default="64M", show_default=True, help="The largest message. Sizes double in between.")
@output_option
@click.pass_context
def bench_network(
    context: click.Context, /, job: str | None, smallest: str, largest: str, output: str, **options: Any
) -> None:
    """Measure the network between a job's nodes.

    Runs all_reduce on nodes like those of JOB.yaml, or as --nodes and the other options say: submits a separate job,
    waits for it, and releases its nodes. Prints the columns of nccl-tests: size, time, algorithm and bus bandwidth.
    Ctrl-C cancels the job.
    """
    with connected(context) as daemon, prepared(job, options, smallest, largest) as found:
        warn(daemon.post("/v1/check", {"spec": found.spec})["warnings"])
        digest = upload(found.pack(), daemon)
        body = {"spec": found.spec, "code_sha256": digest, "submission": found.submission}
        name = daemon.post("/v1/jobs", body)["name"]
        try:
            result = _wait(daemon, name)
        except KeyboardInterrupt:
            daemon.post(job_path(name, "/cancel"))
            click.echo(f"spotsupctl: {name}: cancelling; its machines are released", err=True)
            sys.exit(1)
    if output == "json":
        print_json({"job": name, **result})
        return
    from supervisor.cli.show import show_network

    show_network(result)


def size_of(text: str) -> int:
    """Bytes in "512", "8K", "64M", "1G". Raises UsageError."""
    found = re.fullmatch(r"([1-9]\d{0,14})([KMG]?)", text.strip().upper())
    if found is None:
        raise UsageError(f"the size {text!r} is not of the form 512, 8K, 64M or 1G")
    return int(found[1]) * _UNITS[found[2]]


def network_spec(spec: Mapping[str, Any], smallest: str, largest: str) -> dict[str, Any]:
    """The job that measures the network of `spec`'s nodes: all of them at once, for half an hour at most."""
    first, last = size_of(smallest), size_of(largest)
    if first > last:
        raise UsageError(f"the sweep goes from {smallest} to {largest}; the first size must not be the larger one")
    nodes = spec.get("nodes", 1)
    wanted = nodes.get("desired", nodes.get("min", 1)) if isinstance(nodes, dict) else nodes
    name = str(spec.get("name", "bench"))[: MAX_NAME - len(SUFFIX)].rstrip("-") + SUFFIX
    limits = spec["limits"] if isinstance(spec.get("limits"), dict) else {}
    return {
        **{key: value for key, value in spec.items() if key not in _LEFT_OUT},
        "checkpoints": "none",
        "name": name,
        "nodes": {"min": wanted, "desired": wanted, "max": wanted},
        "run": shlex.join(["-m", MODULE, "--from-bytes", str(first), "--to-bytes", str(last)]),
        "limits": {**limits, "hours": HOURS, "app_failures": 0},
    }


@contextmanager
def prepared(job: str | None, options: Mapping[str, Any], smallest: str, largest: str) -> Iterator[Prepared]:
    """What is submitted, with the job's code only if its `setup` or its environment needs it. Raises UsageError."""
    if job is not None and not job.endswith((".yaml", ".yml")):
        raise UsageError(
            f"{job!r} is not a job file; name one that ends in .yaml, or give only options such as --nodes"
        )
    found = prepare((job,) if job else ("-m", MODULE), options)
    spec = network_spec(found.spec, smallest, largest)
    needs_code = bool(spec.get("setup")) or spec.get("environment", "image") != "image"
    with tempfile.TemporaryDirectory(prefix="spotsup-") as empty:
        yield Prepared(spec, found.folder if needs_code else Path(empty), found.submission)


def result_in(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The last result in a job's log; None without one."""
    texts: dict[str, str] = {}
    for chunk in chunks:
        texts[chunk["node"]] = texts.get(chunk["node"], "") + chunk["text"]
    found: dict[str, Any] | None = None
    for line in "\n".join(texts.values()).splitlines():
        _, prefix, result = line.partition(RESULT_PREFIX)
        try:
            found = json.loads(result) if prefix else found
        except ValueError:
            continue  # the line is not complete yet
    return found


def _wait(daemon: Transport, name: str) -> dict[str, Any]:
    """The result, once the job has succeeded. Prints its status on stderr meanwhile."""
    printed, until = "", float("inf")
    while True:
        job = daemon.get(job_path(name))
        if job["sentence"] != printed:
            printed = job["sentence"]
            click.echo(f"{time.strftime('%H:%M:%S')}  {job['state']:<9}  {printed}", err=True)
        if job["state"] == "paused":
            daemon.post(job_path(name, "/cancel"))
        if job["state"] in ENDED - {"succeeded"} | {"paused"}:
            why = f"{job['state']}: {job['reason']}"
            raise SpotsupError(f"the job {name} has no result ({why}); see `spotsupctl logs {name}`")
        if job["state"] == "succeeded":
            if result := result_in(all_output(daemon, name)):
                return result
            until = min(until, time.monotonic() + LOG_WAIT_S)
            if time.monotonic() > until:
                raise SpotsupError(
                    f"the job {name} succeeded, but its log has no result; `spotsupctl logs {name}` has what it printed"
                )
        time.sleep(FOLLOW_S)
