"""`spotsupctl init`: a job file for a script, from a few answers."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from supervisor.cli.common import exit_on_error

_NAME = re.compile(r"[^a-z0-9-]+")
_CANDIDATES = ("train.py", "main.py", "run.py", "finetune.py")
MAX_NAME = 40


@click.command("init")
@click.argument("script", required=False)
@click.argument("arguments", nargs=-1)
@click.option("--name", help="The job's name.  [default: the folder's]")
@click.option("--nodes", type=click.IntRange(1, 64), help="How many nodes to ask for.")
@click.option("--gpu", help="GPU type, such as V100; none trains on CPUs.")
@click.option("--gpus-per-node", type=click.IntRange(0, 16), help="GPUs on each node.")
@click.option("--hours", type=float, help="The job pauses after training for so many hours.")
@click.option("--usd", type=float, help="The job pauses once its nodes have cost so many US dollars.")
@click.option(
    "--checkpoints", help="Where checkpoints go: s3://…, gs://…, abfs://…, a folder on shared storage, or none."
)
@click.option("--file", "path", type=click.Path(path_type=Path), default=Path("job.yaml"), show_default=True)
@click.option("--force", is_flag=True, help="Replace a file that is there.")
def init(script: str | None, arguments: tuple[str, ...], path: Path, *, force: bool, **given: Any) -> None:
    """Write a job file for SCRIPT, asking at a terminal for what no option says.

    For example: spotsupctl init train.py --nodes 2 -- --lr 0.1. Needs no daemon.
    """
    from supervisor.errors import CommandRefusedError, UsageError

    with exit_on_error("spotsupctl"):
        if path.exists() and not force:
            raise CommandRefusedError(f"{path} is there already: --force replaces it, --file names another")
        folder = path.parent
        script = script or _ask("the training script", "SCRIPT", _likely_script(folder))
        if not (folder / script).is_file():
            raise UsageError(f"there is no {script} in {folder.absolute()}: run this where your script is")
        text = (folder / script).read_text(errors="replace")
        answers: dict[str, Any] = {
            "name": given["name"] or _ask("the job's name", "--name", name_of(folder.absolute().name)),
            "nodes": given["nodes"] or int(_ask("how many nodes", "--nodes", "1")),
            "gpu": given["gpu"] if given["gpu"] is not None else _ask("GPU type, none for CPUs", "--gpu", "none"),
            "environment": environment_of(folder),
        }
        has_gpu = answers["gpu"].lower() not in ("", "none")
        per_node = given["gpus_per_node"]
        if has_gpu and per_node is None:
            per_node = int(_ask("GPUs on each node", "--gpus-per-node", "1"))
        answers["gpus_per_node"] = per_node if has_gpu else 0
        answers["hours"] = given["hours"] or float(_ask("pause after how many hours of training", "--hours", "24"))
        checkpoints = given["checkpoints"]
        if checkpoints is None:
            checkpoints = _ask("where checkpoints go (s3://…, gs://…, none; empty: decide later)", "--checkpoints", "")
        run = shlex.join([script, *arguments])
        path.write_text(job_file(run, {**answers, "usd": given["usd"], "checkpoints": checkpoints}))
    click.echo(f"wrote {path}")
    if "spotsup_trainer" not in text:
        click.echo(
            "the script has no Session: it runs as it is, and keeps what it saves itself; six lines keep all steps"
        )
    click.echo(f"next: `spotsupctl plan {path}` shows prices, `spotsupctl submit {path} --follow` trains")


def _ask(question: str, option: str, default: str) -> str:
    """Return what the person answers; at no terminal the default. Raises UsageError where there is none."""
    from supervisor.errors import UsageError

    if sys.stdin.isatty():
        return str(click.prompt(question, default=default, type=str, show_default=bool(default))).strip()
    if option == "SCRIPT" and not default:
        raise UsageError(f"{question}: give {option}, or run this in a terminal")
    return default


def name_of(text: str) -> str:
    """Return a job's name from a folder's."""
    name = _NAME.sub("-", text.lower()).strip("-")[:MAX_NAME].strip("-").lstrip("0123456789-")
    return name if len(name) > 1 else "my-job"


def _likely_script(folder: Path) -> str:
    return next((name for name in _CANDIDATES if (folder / name).is_file()), "")


def environment_of(folder: Path) -> str:
    """Return what the code brings for its environment, "" if it brings nothing."""
    if (folder / "uv.lock").is_file():
        return "uv"
    return "requirements.txt" if (folder / "requirements.txt").is_file() else ""


def job_file(run: str, answers: dict[str, Any]) -> str:
    """Return the text of a job file, with a comment where something is worth knowing."""
    import yaml

    def value(given: Any) -> str:
        return yaml.safe_dump(given, default_flow_style=True, width=1000).removesuffix("\n...\n").strip()

    nodes = answers["nodes"]
    lines = [f"name: {value(answers['name'])}"]
    lines += [f"nodes: {{min: 1, desired: {nodes}, max: {max(nodes, 2 * nodes)}}}   # trains from 1 on, may be scaled"]
    if answers["gpus_per_node"]:
        resources = {"gpu": answers["gpu"], "gpus_per_node": answers["gpus_per_node"]}
        lines += [f"resources: {value(resources)}"]
    lines += ["code: .                                   # packed and shipped; .spotsupignore leaves files out"]
    if answers["environment"]:
        lines += [f"environment: {value(answers['environment'])}"]
    lines += [f"run: {value(run)}"]
    limits = {"hours": answers["hours"], **({"usd": answers["usd"]} if answers["usd"] else {})}
    lines += [f"limits: {value(limits)}                    # the job pauses there; `spotsupctl limits` raises them"]
    if answers["checkpoints"]:
        lines += [f"checkpoints: {value(answers['checkpoints'])}"]
    else:
        lines += [
            "# checkpoints: s3://bucket/prefix         # on a rented cloud: where they outlive the nodes, or none"
        ]
    return "\n".join(lines) + "\n"
