"""The options that describe a job, on a command line: each sets one key of the job file, and wins over it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from supervisor.errors import UsageError
from supervisor.job_keys import section, set_key

# Written by tools/job_options.py from the model of a job file, which commands need not load.
_WRITTEN = Path(__file__).with_name("job_options.json")
_TYPES = {"text": str, "integer": int, "number": float}


@dataclass(frozen=True, slots=True)
class JobOption:
    """One option. `key`: the path of what it sets, as `limits.hours`."""

    flag: str
    key: str
    help: str
    type: str | Sequence[str]  # the name of a type, or the values that it can have
    repeated: bool = False
    changeable: bool = False  # also of a job that runs

    @property
    def parameter(self) -> str:
        """Return the name under which click passes it."""
        return self.flag.removeprefix("--").replace("-", "_")

    def add_to(self, command: Callable[..., None]) -> Callable[..., None]:
        """Return the command with this option."""
        return click.option(
            *(self.flag, self.parameter),
            type=_TYPES[self.type] if isinstance(self.type, str) else click.Choice(self.type),
            multiple=self.repeated,
            default=() if self.repeated else None,
            help=f"{self.help} May be given several times." if self.repeated else self.help,
        )(command)


# Whatever has no option is set by --set.
JOB_OPTIONS = tuple(JobOption(**each) for each in json.loads(_WRITTEN.read_text(encoding="utf-8")))
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
    """Return all options that describe a job. `without`: flags that mean something else for this command."""
    for lone in reversed(_LONE_FLAGS):
        command = lone(command)
    for each in reversed(JOB_OPTIONS):
        if each.flag not in without:
            command = each.add_to(command)
    return command


def limit_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the limits that can be changed while a job runs."""
    for each in reversed(JOB_OPTIONS):
        if each.changeable:
            command = each.add_to(command)
    return command


def job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a job file, or a command with options: what `submit` takes."""
    return _what(spec_options(command))


def planned_job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the same without `--hours` and `--work`, which `plan --simulate` has for itself."""
    return _what(spec_options(command, ("--hours", "--work")))


def _what(command: Callable[..., None]) -> Callable[..., None]:
    metavar = "JOB.yaml [-- ARGS]... | -- SCRIPT [ARGS]..."
    return click.argument("what", nargs=-1, required=True, metavar=metavar)(command)


def merge(spec: dict[str, Any], options: Mapping[str, Any], known: Sequence[JobOption] = JOB_OPTIONS) -> None:
    """Set in `spec` what the options say. Raises UsageError with one sentence."""
    for each in known:
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
    """Set as many nodes as have `gpus` together. Bounds in the file stay as far as they fit."""
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
