"""The options that describe a job, on a command line: each sets one key of the job file, and wins over it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from supervisor.errors import UsageError
from supervisor.job_keys import section, set_key


@dataclass(frozen=True, slots=True)
class JobOption:
    """One option. `key`: the path of what it sets, as `limits.hours`."""

    flag: str
    key: str
    help: str
    type: click.ParamType[Any] | type = str
    metavar: str | None = None
    repeated: bool = False

    @property
    def parameter(self) -> str:
        """The name under which click passes it."""
        return self.flag.removeprefix("--").replace("-", "_")


# Keys that only make sense as a whole are given as YAML; whatever has no option is set by --set.
JOB_OPTIONS = (
    JobOption("--name", "name", "The job's name."),
    JobOption("--kind", "kind", "What it runs on its nodes.", click.Choice(["training", "data"])),
    JobOption("--nodes", "nodes.desired", "How many nodes to ask for.", int),
    JobOption("--min", "nodes.min", "Train with at least this many nodes.", int),
    JobOption("--max", "nodes.max", "The largest number that `scale` accepts.", int),
    JobOption("--spares", "nodes.spares", "Extra prepared nodes that replace a lost node at once.", int),
    JobOption("--multiple-of", "nodes.multiple_of", "Train on a multiple of so many nodes only.", int),
    JobOption("--gpu", "resources.gpu", "GPU type, such as V100."),
    JobOption("--gpus-per-node", "resources.gpus_per_node", "GPUs on each node; one worker runs per GPU.", int),
    JobOption("--instance-type", "resources.instance_types", "Only this instance type.", repeated=True),
    JobOption(
        "--prefer",
        "prefer",
        "Which of several `resources` is taken, and which place first.",
        click.Choice(["listed", "cheapest"]),
    ),
    JobOption("--disk-gb", "resources.disk_gb", "Size of each node's boot disk.", int),
    JobOption(
        *("--market", "market", "How nodes are bought."), click.Choice(["spot", "on-demand", "spot-then-on-demand"])
    ),
    JobOption("--start-after", "start_after", "No node is asked for before, such as 2026-12-24T22:00Z.", str, "TIME"),
    JobOption("--schedule", "schedule", "Again and again, at times in UTC, such as '0 22 * * 1-5'.", str, "CRON"),
    JobOption("--finish-by", "finish_by", "When its work is to be done, such as 2026-12-24T22:00Z.", str, "TIME"),
    JobOption("--work", "work", "What has to be done by --finish-by, such as 48h of training, or steps."),
    JobOption("--priority", "priority", "Jobs of a higher priority come first.", click.IntRange(-100, 100)),
    JobOption("--cloud", "placement.cloud", "The cloud to rent from, as in a job file."),
    JobOption("--region", "placement.regions", "Only this region.", repeated=True),
    JobOption("--zone", "placement.zones", "Only this zone.", repeated=True),
    JobOption("--spread", "placement.spread", "What all nodes share.", click.Choice(["zone", "region"])),
    JobOption("--code", "code", "The folder that is copied to every node.  [default: the job file's, or .]"),
    JobOption("--environment", "environment", "image, uv, a requirements file of the code, or docker://IMAGE."),
    JobOption(
        *("--checkpoints", "checkpoints"),
        "Where checkpoints go: a folder on shared storage, s3://…, gs://…, abfs://…, or none.",
    ),
    JobOption("--setup", "setup", "A shell line that runs once on each node before training."),
    JobOption("--preload", "preload", "Import this module before training starts.", str, "MODULE", repeated=True),
    JobOption("--hours", "limits.hours", "The job pauses after training for so many hours.", float),
    JobOption("--usd", "limits.usd", "The job pauses once its nodes have cost so many US dollars.", float),
    JobOption("--usd-per-month", "limits.usd_per_month", "The same in one month (UTC).", float),
    JobOption("--usd-per-hour", "limits.usd_per_hour", "No node is asked for that would bring it above this.", float),
    JobOption("--usd-per-node-hour", "limits.usd_per_node_hour", "No node that costs more is asked for.", float),
    JobOption("--app-failures", "limits.app_failures", "The job fails when its program failed more often.", int),
    JobOption("--finish-minutes", "limits.finish_minutes", "Idle ranks end so long after the first.", float),
    JobOption("--stop-seconds", "limits.stop_seconds", "To save in on SIGTERM, without a Session.", float),
    JobOption("--hang", "limits.hang", "What follows when steps hang.", click.Choice(["alert", "restart"])),
    JobOption("--slow", "limits.slow", "What follows when all wait for a node.", click.Choice(["tell", "replace"])),
)
_LONE_FLAGS = (
    click.option(
        *("--gpus", "gpus"),
        type=click.IntRange(min=1),
        help="GPUs in all: as many nodes as have so many together. With --gpus-per-node, or 1 on each.",
    ),
    click.option(
        *("--env", "env"),
        multiple=True,
        metavar="NAME=VALUE",
        help="An environment variable. May be given several times.",
    ),
    click.option(
        *("--storage", "storage"),
        multiple=True,
        metavar="YAML",
        help="A file system, such as '{mount: /mnt/out, nfs: \"SERVER:/\"}'. May be given several times.",
    ),
    click.option(
        *("--set", "settings"),
        multiple=True,
        metavar="KEY=VALUE",
        help="Any key of the job file, written as there: --set nodes.desired=8. May be given several times.",
    ),
)


def spec_options(command: Callable[..., None], without: Collection[str] = ()) -> Callable[..., None]:
    """All options that describe a job. `without`: flags that mean something else for this command."""
    for lone in reversed(_LONE_FLAGS):
        command = lone(command)
    for each in reversed([each for each in JOB_OPTIONS if each.flag not in without]):
        help_text = f"{each.help} May be given several times." if each.repeated else each.help
        command = click.option(
            *(each.flag, each.parameter),
            type=each.type,
            metavar=each.metavar,
            multiple=each.repeated,
            default=() if each.repeated else None,
            help=help_text,
        )(command)
    return command


def job_options(command: Callable[..., None]) -> Callable[..., None]:
    """A job file, or a command with options: what `submit` takes."""
    return _what(spec_options(command))


def planned_job_options(command: Callable[..., None]) -> Callable[..., None]:
    """The same without `--hours` and `--work`, which `plan --simulate` has for itself."""
    return _what(spec_options(command, ("--hours", "--work")))


def _what(command: Callable[..., None]) -> Callable[..., None]:
    metavar = "JOB.yaml [-- ARGS]... | -- SCRIPT [ARGS]..."
    return click.argument("what", nargs=-1, required=True, metavar=metavar)(command)


def merge(spec: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Set in `spec` what the options say. Raises UsageError with one sentence."""
    for each in JOB_OPTIONS:
        given = options.get(each.parameter)
        if given is not None and given != ():
            set_key(spec, each.key, list(given) if each.repeated else given)
    if options.get("env"):
        spec["env"] = {**section(spec, "env"), **_pairs(options["env"], "--env", "NAME=VALUE")}
    for text in options.get("storage") or ():
        spec["storage"] = [*spec.get("storage", ()), _yaml("--storage", text)]
    for key, text in _pairs(options.get("settings") or (), "--set", "KEY=VALUE").items():
        set_key(spec, key, _setting(key, text))
    if options.get("gpus") is not None:
        if options.get("nodes") is not None:
            raise UsageError("--gpus says how many nodes there are: leave --nodes out, or give --gpus-per-node instead")
        _set_gpus(spec, options["gpus"])
    fill_nodes(spec)


def fill_nodes(spec: dict[str, Any]) -> None:
    """`nodes` without a `min`: as many as are desired, or one."""
    nodes = spec.get("nodes")
    if nodes is None:
        spec["nodes"] = {"min": 1, "desired": 1}
    elif isinstance(nodes, dict) and "min" not in nodes:
        spec["nodes"] = {**nodes, "min": nodes.get("desired", 1)}


def _set_gpus(spec: dict[str, Any], gpus: int) -> None:
    """As many nodes as have `gpus` together. Bounds in the file stay as far as they fit."""
    per_node = section(spec, "resources").get("gpus_per_node") or 1
    if not isinstance(per_node, int) or gpus % per_node:
        near = per_node * math.ceil(gpus / per_node) if isinstance(per_node, int) else gpus
        raise UsageError(f"--gpus {gpus} is no multiple of the {per_node} GPUs on each node: {near} would be")
    set_key(spec, "resources.gpus_per_node", per_node)
    desired, nodes = gpus // per_node, spec.get("nodes")
    if isinstance(nodes, dict):
        low, high = nodes.get("min", desired), nodes.get("max", desired)
        bounds = {"min": min(low, desired), "desired": desired, "max": max(high, desired)}
        spec["nodes"] = {**nodes, **bounds}
    else:
        spec["nodes"] = desired


def _pairs(texts: Sequence[str], flag: str, form: str) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            raise UsageError(f"{flag} {text}: write {form}")
    return dict(text.split("=", 1) for text in texts)


def _setting(key: str, text: str) -> Any:
    """Return the value of a key. Those of `env` are texts, as in a job file."""
    if key == "env":
        return _yaml("--set env", f"env: {text}")["env"]
    return text if key.startswith("env.") else _yaml(f"--set {key}", text)


def _yaml(what: str, text: str) -> Any:
    from supervisor.job_text import read_yaml  # here, as few commands need it

    try:
        return read_yaml(text)
    except ValueError as error:
        raise UsageError(f"{what}: {text!r} {error}") from error
