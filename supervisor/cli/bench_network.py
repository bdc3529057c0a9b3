"""`spotsupctl bench-network`: how fast the nodes that a job would get talk to each other.

The sweep is a job of its own, with the same resources: docs/decisions/0012-bench-network.md.
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

from supervisor.cli.common import ENDED, FOLLOW_S, connected, output_option, print_json, warn
from supervisor.cli.submission import Prepared, prepare
from supervisor.cli.submit import JOB_OPTIONS
from supervisor.errors import SpotsupError, UsageError

if TYPE_CHECKING:
    from supervisor.cli.client import Client

MODULE = "spotsup_trainer.bench_network"
RESULT_PREFIX = "spotsup-bench-network "  # as MODULE has it, which nothing here may load
HOURS = 0.5  # the job's own limit, should nobody be left to cancel it
LOG_WAIT_S = 30.0  # the last words of a log come after the job's end
SUFFIX = "-network"
NAME_MOST = 40

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """A job file or none, and what `submit` takes beside it."""
    for option in reversed(JOB_OPTIONS):
        command = option(command)
    return click.argument("job", required=False)(command)


@click.command("bench-network")
@_options
@click.option("--from", "least", default="1K", show_default=True, help="The smallest size, in bytes, or with K, M, G.")
@click.option("--to", "most", default="64M", show_default=True, help="The largest size; each is twice the one before.")
@output_option
@click.pass_context
def bench_network(
    context: click.Context, /, job: str | None, least: str, most: str, output: str, **options: Any
) -> None:
    """Measure all_reduce over nodes such as a job would get: JOB.yaml, or --nodes and the like.

    Submits a job of its own for it, waits, and releases the nodes. Prints what nccl-tests prints: size, time, algorithm
    and bus bandwidth. Ctrl-C cancels it.
    """
    with connected(context) as daemon, prepared(job, options, least, most) as found:
        warn(daemon.post("/v1/check", {"spec": found.spec})["warnings"])
        stored = daemon.put("/v1/blobs", found.pack())
        body = {"spec": found.spec, "code_sha256": stored["sha256"], "submission": found.submission}
        name = daemon.post("/v1/jobs", body)["name"]
        try:
            result = _wait(daemon, name)
        except KeyboardInterrupt:
            daemon.post(f"/v1/jobs/{name}/cancel")
            click.echo(f"spotsupctl: {name} will be cancelled, and its machines released", err=True)
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


def network_spec(spec: Mapping[str, Any], least: str, most: str) -> dict[str, Any]:
    """The job that measures the network of `spec`'s nodes: all that it wants, at once, for half an hour at most."""
    first, last = size_of(least), size_of(most)
    if first > last:
        raise UsageError(f"the sweep goes from {least} to {most}; the first size must not be the larger one")
    nodes = spec.get("nodes", 1)
    wanted = nodes.get("desired", nodes.get("min", 1)) if isinstance(nodes, dict) else nodes
    name = str(spec.get("name", "bench"))[: NAME_MOST - len(SUFFIX)].rstrip("-") + SUFFIX
    limits = spec["limits"] if isinstance(spec.get("limits"), dict) else {}
    return {
        **{key: value for key, value in spec.items() if key not in ("checkpoint_dir", "code", "kind")},
        "name": name,
        "nodes": {"min": wanted, "desired": wanted, "max": wanted},
        "run": shlex.join(["-m", MODULE, "--from-bytes", str(first), "--to-bytes", str(last)]),
        "limits": {**limits, "hours": HOURS, "app_failures": 0},
    }


@contextmanager
def prepared(job: str | None, options: Mapping[str, Any], least: str, most: str) -> Iterator[Prepared]:
    """What is submitted: the job's code only where its `setup` or its environment needs that. Raises UsageError."""
    if job is not None and not job.endswith((".yaml", ".yml")):
        raise UsageError(f"{job!r} is no job file; name one that ends in .yaml, or give --nodes and the like alone")
    found = prepare((job,) if job else ("-m", MODULE), options)
    spec = network_spec(found.spec, least, most)
    needs_code = bool(spec.get("setup")) or spec.get("environment", "image") != "image"
    with tempfile.TemporaryDirectory(prefix="spotsup-") as empty:
        yield Prepared(spec, found.folder if needs_code else Path(empty), found.submission)


def result_in(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The sweep's result in a job's log, the last one; None where there is none (yet)."""
    texts: dict[str, str] = {}
    for chunk in chunks:
        texts[chunk["node"]] = texts.get(chunk["node"], "") + chunk["text"]
    found: dict[str, Any] | None = None
    for line in "\n".join(texts.values()).splitlines():
        _, prefix, told = line.partition(RESULT_PREFIX)
        try:
            found = json.loads(told) if prefix else found
        except ValueError:
            continue  # the rest of the line is still to come
    return found


def _wait(daemon: Client, name: str) -> dict[str, Any]:
    """The result, once the job has ended well; meanwhile, on stderr, what is being done."""
    said, until = "", float("inf")
    while True:
        job = daemon.get(f"/v1/jobs/{name}")
        if job["sentence"] != said:
            said = job["sentence"]
            click.echo(f"{time.strftime('%H:%M:%S')}  {job['state']:<9}  {said}", err=True)
        if job["state"] in ENDED - {"succeeded"}:
            why = f"{job['state']}: {job['reason']}"
            raise SpotsupError(f"the job {name} measured nothing ({why}); `spotsupctl logs {name}` has its last words")
        if job["state"] == "succeeded":
            if result := result_in(daemon.get(f"/v1/jobs/{name}/logs")):
                return result
            until = min(until, time.monotonic() + LOG_WAIT_S)
            if time.monotonic() > until:
                raise SpotsupError(f"the job {name} has ended, and no result of it is in its log")
        time.sleep(FOLLOW_S)
