"""Writes docs/reference/ from the models and command lines: `make docs`.

A test compares what is written here with the files; SPOTSUP_WRITE_DOCS=1 makes it rewrite them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import yaml

from provisioners.codes import markdown
from provisioners.registry import CLOUDS
from provisioners.settings import CloudSettings
from supervisor.cli.common import EXIT_CODES
from supervisor.cli.ctl import main as spotsupctl
from supervisor.cli.daemon import main as spotsupd
from supervisor.config import Config
from supervisor.spec import JobSpec
from tools.broken_setups import ROWS
from tools.job_options import model_of

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"

JOB_EXAMPLE = """\
name: resnet50
kind: training
nodes: {min: 2, desired: 4, max: 8, spares: 1, multiple_of: 2}
resources:
  - {gpu: V100, gpus_per_node: 1, instance_types: [p3.2xlarge], disk_gb: 200, speed: 1.0}
  - {gpu: T4, gpus_per_node: 1, speed: 0.4}
prefer: listed
priority: 10
start_after: "2026-12-24T22:00Z"
schedule: "0 22 * * 1-5"
finish_by: 52h
work: 48h
market: spot-then-on-demand
placement:
  cloud: aws
  regions: [us-east-1]
  zones: [us-east-1a, us-east-1b]
  spread: zone
storage:
  - {mount: /mnt/out, nfs: "fs-0a1b2c3d.efs.us-east-1.amazonaws.com:/", mode: rw}
  - {mount: /mnt/data, filestore: "10.0.0.2:/vol1", mode: ro}
  - {mount: /mnt/fast, lustre: "fs-0e4f.fsx.us-east-1.amazonaws.com@tcp:/abcdef", zone: us-east-1a}
  - {mount: /mnt/scratch, scratch: true, cloud: aws}
code: .
environment: requirements.txt
setup: python -m nltk.downloader punkt
run: train.py --data /mnt/data --lr 0.1
env: {LR: "0.1", WANDB_MODE: offline}
secrets: [WANDB_API_KEY]
limits:
  {hours: 48, usd: 200, usd_per_month: 100, usd_per_hour: 12, usd_per_node_hour: 3, app_failures: 3,
   finish_minutes: 2, stop_seconds: 60, hang: alert, slow: tell}
checkpoints: /mnt/out/jobs
preload: [transformers, torchvision.io]
"""

CONFIG_EXAMPLE = """\
cluster = "research"
state_dir = "/var/lib/spotsup"

[etcd]
endpoints = ["https://10.0.0.5:2379", "https://10.0.0.6:2379", "https://10.0.0.7:2379"]
ca = "/etc/spotsup/etcd-ca.pem"
user = "spotsup"
password_file = "/etc/spotsup/etcd-password"

[api]
targets = "10.0.0.5:9465"
listen = "0.0.0.0:8443"
names = ["spot.example.org"]

[local]
enabled = true

[aws]
regions = ["us-east-1", "us-west-2"]
disk_gb = 200
tags = { team = "vision" }

[aws.security_groups]
us-east-1 = ["sg-0123456789abcdef0"]
us-west-2 = ["sg-0fedcba9876543210"]

[gcp]
project = "my-project"
regions = ["us-central1"]
service_account = "spotsup-nodes@my-project.iam.gserviceaccount.com"

[azure]
subscription = "00000000-0000-0000-0000-000000000000"
resource_group = "spotsup"
regions = ["eastus"]

[azure.subnets]
eastus = "/subscriptions/…/virtualNetworks/spotsup/subnets/nodes"

[own.hosts.box1]
address = "box1.lab"
user = "ann"
available = "18:00-08:00, weekends"

[node]
python = "/opt/venv/bin/python"
cache = "/mnt/out/environments"

[slack]
webhook_file = "/etc/spotsup/slack-webhook"

[timing]
suspect_s = 30.0

[budget]
usd_per_month = 2000
user_usd_per_month = 500
users = {ann = 900}

[retention]
ended_jobs_days = 365

[queue]
preempt = true
cluster = { gpus = 64, usd_per_hour = 60.0 }
user = { gpus = 16 }
users.ann = { gpus = 32 }
"""

TYPES = {"string": "string", "integer": "integer", "number": "number", "boolean": "boolean"}


def documents() -> dict[str, str]:
    """Return the generated files' names and contents."""
    return {
        "job-file.md": job_file(),
        "spotsupd-toml.md": configuration(),
        "cli.md": command_lines(),
        "cloud-errors.md": cloud_errors(),
        "broken-setups.md": broken_setups(),
    }


# -- models ------------------------------------------------------------------------------------------------


def job_file(model: type[JobSpec] = JobSpec) -> str:
    """Return every key of a job file."""
    schema = model.model_json_schema()
    lines = [
        *_head("Job file", "supervisor/spec.py"),
        (
            "A job file is YAML: `spotsupctl submit job.yaml`. Unknown keys are refused. `name`, `nodes` and `run` are "
            "required; all other keys have defaults."
        ),
        "",
        "Most keys at once:",
        *("", "```yaml", *JOB_EXAMPLE.splitlines(), "```", ""),
        "## Top level",
        "",
        *_table(schema, schema),
    ]
    for key in ("nodes", "resources", "placement", "storage", "limits"):
        part = model_of(schema, schema["properties"][key])
        lines += ["", f"## {key}", "", _text(part["description"]), "", *_table(schema, part)]
    return "\n".join([*lines, ""])


def configuration() -> str:
    """Return every table and key of spotsupd.toml."""
    schema = Config.model_json_schema()
    plain = {name: each for name, each in schema["properties"].items() if not model_of(schema, each)}
    lines = [
        *_head("spotsupd.toml", "supervisor/config.py and provisioners/*/settings.py"),
        (
            "The daemon's configuration is one TOML file: `spotsupd run --config /etc/spotsup/spotsupd.toml`. Without "
            "a file, every key has its default: the local cloud and an etcd at 127.0.0.1. Unknown keys are refused. "
            "The file is read once, when the daemon starts; `spotsupd check` tests it."
        ),
        "",
        "An example:",
        *("", "```toml", *CONFIG_EXAMPLE.splitlines(), "```", ""),
        "## Top level",
        "",
        _text(Config.__doc__ or ""),
        "",
        *_table(schema, {**schema, "properties": plain}),
    ]
    shared = CloudSettings.model_json_schema()
    tables = {key: model for key, each in schema["properties"].items() if (model := model_of(schema, each))}
    clouds = [
        f"`[{key}]`" for key, model in tables.items() if shared["properties"].keys() <= model["properties"].keys()
    ]
    for key, model in tables.items():
        if f"`[{key}]`" == clouds[0]:
            lines += ["", "## Keys of every rented cloud", "", f"Each of {', '.join(clouds)} takes these keys:", ""]
            lines += _table(shared, shared)
        hidden = shared["properties"] if f"`[{key}]`" in clouds else {}
        own = {name: each for name, each in model["properties"].items() if name not in hidden}
        lines += ["", f"## [{key}]", "", _text(model["description"]), ""]
        lines += _table(schema, {**model, "properties": own})
        inner = {name: found for name, each in own.items() if (found := model_of(schema, each))}
        alike: dict[str, list[str]] = {}
        for name, found in inner.items():
            many = {"array": f"[[{key}.{name}]]", "object": f"[{key}.{name}.NAME]"}
            alike.setdefault(found["title"], []).append(many.get(own[name].get("type", ""), f"[{key}.{name}]"))
        of_title = {found["title"]: found for found in inner.values()}
        shown: list[str] = []
        for title, heads in alike.items():
            found = of_title[title]
            rows = _table(schema, found)
            lines += ["", f"## {' '.join(heads)}", "", _text(found["description"]), ""]
            lines += [row for row in rows if row not in shown[2:]]
            if again := [row.split()[1] for row in rows[2:] if row in shown]:
                lines += ["", f"And as above: {', '.join(again)}."]
            shown += rows
    return "\n".join([*lines, ""])


def _head(title: str, source: str) -> list[str]:
    return [f"# {title}", "", f"<!-- Written by `make docs` from {source}: change it there. -->", ""]


def _table(schema: Mapping[str, Any], model: Mapping[str, Any]) -> list[str]:
    """Return one row per key."""
    lines = [_row(["Key", "Type", "Default", "Meaning"]), "|---|---|---|---|"]
    for key, property_ in model["properties"].items():
        limits = _limits(property_)
        cells = [
            f"`{key}`",
            _type(schema, property_) + (f", {limits}" if limits else ""),
            _default(schema, model, key, property_),
            _text(property_.get("description") or model_of(schema, property_).get("description", "")),
        ]
        lines.append(_row(cells))
    return lines


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _type(schema: Mapping[str, Any], property_: Mapping[str, Any]) -> str:
    options = [each for each in property_.get("anyOf", [property_]) if each.get("type") != "null"]
    first = options[0]
    if first.get("type") == "array":
        return f"list of {'tables' if model_of(schema, first) else _type(schema, first['items']) + 's'}"
    if first.get("type") == "object":
        inner = first.get("additionalProperties") or next(iter(first["patternProperties"].values()))
        return f"table of {'lists of strings' if inner.get('type') == 'array' else _type(schema, inner) + 's'}"
    return TYPES.get(first.get("type", ""), "table")


def _default(schema: Mapping[str, Any], model: Mapping[str, Any], key: str, property_: Mapping[str, Any]) -> str:
    if "x-default" in property_:
        return str(property_["x-default"])
    if key in model.get("required", ()):
        return "required"
    default = property_.get("default")
    if default in ("", [], {}):
        return "empty"
    if model_of(schema, property_):
        return "see there"
    return "none" if default is None else _code(default)


def _limits(property_: Mapping[str, Any]) -> str:
    found = next((each for each in property_.get("anyOf", [property_]) if each.get("type") != "null"), property_)
    if "enum" in found:
        return ", ".join(f"`{each}`" for each in found["enum"] if each != "")
    low, high = found.get("minimum"), found.get("maximum")
    if low is not None and high is not None:
        return f"{low:g} to {high:g}"
    if "exclusiveMinimum" in found:
        above = f"above {found['exclusiveMinimum']:g}"
        return f"{above}, at most {high:g}" if high is not None else above
    if "pattern" in found:
        return f"`{found['pattern']}`"
    if "minItems" in found:
        return f"{found['minItems']} to {found['maxItems']} entries"
    return f"at most {found['maxProperties']} entries" if "maxProperties" in found else ""


def _code(value: Any) -> str:
    if isinstance(value, str):
        return f"`{value}`"
    text = yaml.safe_dump(value, default_flow_style=True, width=1000, sort_keys=False).strip()
    return f"`{text.removesuffix('...').strip()}`"


def _text(description: str) -> str:
    return " ".join(description.split())


# -- clouds ------------------------------------------------------------------------------------------------


def cloud_errors() -> str:
    """Return every cloud's table of error codes."""
    lines = [
        *_head("Error codes of the clouds", "provisioners/*/errors.py"),
        (
            "What a launch that meets a code comes to; how far a refusal reaches; for how long the same is not asked "
            "again (memory). Search for the code that an event names. One that is in no table is transient, and raises "
            "an alert. The sources of the codes are in the code."
        ),
    ]
    for name, cloud in CLOUDS.items():
        if cloud.has_catalog:
            errors = import_module(f"provisioners.{name}.errors")
            _, *paragraphs = (errors.__doc__ or "").split("\n\n")
            lines += [
                "",
                f"## {name}",
                "",
                *(f"{_text(each)}\n" for each in paragraphs if not each.startswith("Sources:")),
                markdown(errors.TABLE).rstrip(),
            ]
    return "\n".join([*lines, ""])


# -- broken set-ups ----------------------------------------------------------------------------------------


def broken_setups() -> str:
    """Return the broken set-ups that are recognised, and by which check."""
    lines = [
        *_head("Broken set-ups", "tools/broken_setups"),
        (
            "What can be wrong on the day of installing, and which check finds it. The check says what is wrong, where,"
            " and what to do: a test breaks each of these and compares the sentence. Where no program is named it is a "
            "check of `spotsupd check`, which starts nothing and costs nothing."
        ),
    ]
    for group in dict.fromkeys(row.group for row in ROWS):
        lines += ["", f"## {group}", "", _row(["Broken", "Found by"]), "|---|---|"]
        for row in (row for row in ROWS if row.group == group):
            where = row.check or (row.program if row.program != "spotsupd check" else "before all")
            lines.append(_row([row.what, where]))
    return "\n".join([*lines, ""])


# -- command lines -----------------------------------------------------------------------------------------


def command_lines() -> str:
    """Return every command of spotsupctl and spotsupd."""
    lines = [
        *_head("Command lines", "supervisor/cli/"),
        (
            "`spotsupctl` is for users: it talks to the daemon over a Unix socket. `spotsupd` is the daemon and its "
            "tools. (`spotsup-localcloud --help`: faults for the machines of the local cloud.) "
            "Options that several commands share are listed once, under their program; so are those of a job, which "
            "`submit` and `plan` share. `COMMAND --help` lists all that a command takes."
        ),
        "",
        "## Exit codes",
        "",
        "| Code | Meaning |",
        "|---|---|",
        *(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()),
    ]
    for name, group in (("spotsupctl", spotsupctl), ("spotsupd", spotsupd)):
        lines += ["", f"## {name}", *_program(name, group)]
    return "\n".join([*lines, ""])


# Commands whose own options are those of a job, listed once.
JOB_COMMANDS = ("spotsupctl submit", "spotsupctl plan")
# An option that so many commands of a program have is listed under the program.
SHARED_BY = 5

Record = tuple[str, str]


def _program(name: str, group: click.Group) -> Iterator[str]:
    """Yield a program's help as Markdown: its options, those that commands share, then each command's own."""
    context = click.Context(group, info_name=name)
    commands = dict(_commands(group, context))
    counts = Counter(record for each in commands.values() for record in _records(each))
    shared = [record for record, number in counts.items() if number >= SHARED_BY]
    yield from _usage(context)
    yield from _options(_records(context))
    yield from ("", "### Options of several commands", *_options(shared))
    job: list[Record] = []
    if JOB_COMMANDS[0] in commands:
        submit, plan = ([each for each in _records(commands[key]) if each not in shared] for key in JOB_COMMANDS)
        job = [record for record in submit if record in plan]
        names = ", ".join(f"`{option}`" for option, _ in job)
        yield from (
            "",
            "### Options of a job",
            "",
            "Of `submit` and `plan`. Most are a key of the [job file](job-file.md), which says",
        )
        yield from (
            "what they mean; `--gpus` is the GPUs of all nodes together, and `--set` sets any key:",
            "",
            f"{names}.",
        )
    for path, each in commands.items():
        records = _records(each)
        yield from ("", f"### {path}", *_usage(each))
        yield from _options([record for record in records if record not in shared and record not in job])
        also = [f"`{option.split()[0].rstrip(',')}`" for option, _ in records if (option, _) in shared]
        also += ["the [options of a job](#options-of-a-job)"] if job and path in JOB_COMMANDS else []
        if also:
            yield from ("", f"Also {', '.join(also)}.")


def _commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Context]]:
    for key in group.list_commands(context):
        command = group.get_command(context, key)
        assert command is not None
        inner = click.Context(command, context, info_name=key)
        yield inner.command_path, inner
        if isinstance(command, click.Group):
            yield from _commands(command, inner)


def _usage(context: click.Context) -> Iterator[str]:
    usage = " ".join(piece for piece in context.command.collect_usage_pieces(context) if piece != "[OPTIONS]")
    yield from ("", f"`{context.command_path} {usage}`", "", _paragraphs(context.command.help or ""))


def _records(context: click.Context) -> list[Record]:
    """Return each option's names and its text."""
    options = [each for each in context.command.params if isinstance(each, click.Option)]
    found = (each.get_help_record(context) for each in options)
    return [(record[0].replace(" RANGE", ""), _text(record[1])) for record in found if record]


def _options(records: Sequence[Record]) -> Iterator[str]:
    if records:
        yield from ("", "| Option | Meaning |", "|---|---|")
        for option, meaning in records:
            yield _row([f"`{option}`", meaning])


def _paragraphs(text: str) -> str:
    return "\n\n".join(_text(each) for each in text.strip().split("\n\n"))


def write(folder: Path = FOLDER) -> None:
    """Write all files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in documents().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
