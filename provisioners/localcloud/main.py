"""`spotsup-localcloud`: serve a cloud, show it, and inject faults into its machines.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the server is not reachable, 4 no such machine, 5 refused.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from provisioners.localcloud.client import Answer

TIMEOUT_S = 30.0
_EXIT_FAILED, _EXIT_UNREACHABLE, _EXIT_NOT_FOUND, _EXIT_REFUSED = 1, 3, 4, 5

_directory = click.option(
    "--dir",
    "directory",
    required=True,
    envvar="SPOTSUP_LOCALCLOUD_DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="The cloud's directory.",
)
_output = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="How to print.")
_machine = click.argument("machine")


def _behaviour(command: Any) -> Any:
    """Return the options that `serve` and `set` share."""
    for option in (
        click.option("--launch-delay", type=float, metavar="S", help="Seconds from a launch to a started sshd."),
        click.option("--listing-lag", type=float, metavar="S", help="Seconds by which listings are behind."),
        click.option("--clock-ahead", type=float, metavar="S", help="Seconds by which its clock is ahead."),
        click.option("--flex-lasts", type=float, metavar="S", help="Seconds that machines of the market flex last."),
        click.option("--image", metavar="DIR", help="New machines are virtual ones, of this image; '' for none."),
        click.option("--capacity", multiple=True, metavar="ZONE=N", help="How many machines a zone holds."),
        click.option("--type", "types", multiple=True, metavar="NAME=SPOT:ON_DEMAND[:GPU:N]", help="Prices in $/h."),
        click.option("--fault", "faults", multiple=True, metavar="FAULT", help="What the next launch calls meet."),
    ):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """A cloud in one directory: real sshd machines on loopback addresses."""


@main.command()
@_directory
@_behaviour
def serve(directory: Path, **behaviour: Any) -> None:
    """Serve the cloud until SIGTERM or Ctrl-C. Its machines run on; `destroy` ends them."""
    from provisioners.localcloud.programs import ProgramMissingError, find_ssh_programs, tools_root
    from provisioners.localcloud.server import log_to_stderr
    from provisioners.localcloud.server import serve as serve_cloud
    from provisioners.localcloud.store import Store, StoreError

    if sys.platform != "linux":
        _fail(_EXIT_FAILED, f"the local cloud needs Linux (/proc, 127.0.0.0/8), this is {sys.platform}")
    patch = _patch(behaviour)
    log_to_stderr()
    try:
        code = serve_cloud(Store(directory), find_ssh_programs(tools_root()), patch)
    except StoreError as error:
        _fail(_EXIT_REFUSED, str(error))
    except (ProgramMissingError, OSError, ValueError) as error:
        _fail(_EXIT_FAILED, f"cannot serve {directory}: {error}")
    sys.exit(code)


@main.command("list")
@_directory
@_output
def list_machines(directory: Path, output: str) -> None:
    """All machines as they are now, without the listing lag."""
    machines = _call(directory, "GET", "/v1/admin/machines")
    if output == "json":
        click.echo(json.dumps(machines, indent=2))
        return
    click.echo(f"{'MACHINE':<22} {'NODE':<20} {'ZONE':<10} {'STATE':<11} {'SSH':<22} NOTE")
    for each in machines:
        ssh = f"{each['ssh_host']}:{each['ssh_port']}" if each["ssh_host"] else "-"
        click.echo(
            f"{each['id']:<22} {each['node']:<20} {each['zone']:<10} {each['state']:<11} {ssh:<22} {_note(each)}"
        )


@main.command()
@_machine
@click.option("--notice", type=float, default=30.0, show_default=True, metavar="S", help="Seconds until the end.")
@click.option("--false-alarm", is_flag=True, help="Announce it, and end nothing.")
@_directory
@_output
def preempt(machine: str, notice: float, directory: Path, output: str, *, false_alarm: bool) -> None:
    """Announce a preemption to MACHINE (its id, or its node), and end it when the notice is over."""
    body = {"notice_s": notice, "false_alarm": false_alarm}
    _change(directory, "admin/machines", machine, "preempt", body, output)


def _machine_command(verb: str, help_text: str, root: str = "admin/machines") -> None:
    """Add a command that only names a machine."""

    @main.command(verb, help=help_text)
    @_machine
    @_directory
    @_output
    def command(machine: str, directory: Path, output: str) -> None:
        _change(directory, root, machine, verb, None, output)


_machine_command("withdraw", "Take back the preemption that was announced to MACHINE (its id, or its node).")
_machine_command("kill", "Make MACHINE (its id, or its node) vanish at once, without a notice.")
_machine_command(
    "freeze",
    "Stop all processes of MACHINE (its id, or its node): the cloud reports it as running, and it does not answer.",
)
_machine_command("thaw", "Continue all processes of MACHINE (its id, or its node) after a freeze.")
_machine_command("terminate", "End MACHINE (its id, or its node) as its owner would.", "machines")


@main.command("set")
@_directory
@_output
@_behaviour
def set_behaviour(directory: Path, output: str, **behaviour: Any) -> None:
    """Change how the cloud behaves, at once; without an option only print it."""
    patch = _patch(behaviour)
    settings = _call(directory, "PATCH", "/v1/admin/settings", patch.model_dump(mode="json", exclude_unset=True))
    if output == "json":
        click.echo(json.dumps(settings, indent=2))
        return
    for name, value in settings.items():
        click.echo(f"{name}: {json.dumps(value)}")


@main.command()
@_directory
@_output
def destroy(directory: Path, output: str) -> None:
    """End every machine and the server, also one that is dead already; fails when a process survives."""
    from provisioners.localcloud.control import ServerError
    from provisioners.localcloud.control import destroy as destroy_cloud
    from provisioners.localcloud.store import StoreError

    try:
        done = destroy_cloud(directory)
    except StoreError as error:
        _fail(_EXIT_NOT_FOUND, str(error))
    except (ServerError, OSError) as error:
        _fail(_EXIT_FAILED, str(error))
    if output == "json":
        click.echo(json.dumps({"machines": done.machines, "processes_left": done.processes_left}))
    else:
        click.echo(f"{len(done.machines)} machines ended, {len(done.processes_left)} processes left")
    if done.processes_left:
        _fail(_EXIT_FAILED, f"these processes do not die: {', '.join(map(str, done.processes_left))}")


def _patch(behaviour: dict[str, Any]) -> Any:
    """Return the SettingsPatch of the options that were given; wrong values are wrong usage."""
    from pydantic import ValidationError

    from provisioners.localcloud.models import SettingsPatch, sentence

    given: dict[str, Any] = {}
    for option in ("launch_delay", "listing_lag", "clock_ahead", "flex_lasts"):
        if behaviour[option] is not None:
            given[f"{option}_s"] = behaviour[option]
    try:
        if behaviour["image"] is not None:
            given["image"] = behaviour["image"]
        if behaviour["capacity"]:
            given["capacity"] = {zone: int(room) for zone, room in map(_pair, behaviour["capacity"])}
        if behaviour["types"]:
            given["instance_types"] = [_type(*_pair(text)) for text in behaviour["types"]]
        if behaviour["faults"]:
            given["next_launch_faults"] = behaviour["faults"]
        return SettingsPatch.model_validate_json(json.dumps(given))
    except ValidationError as error:
        raise click.UsageError(sentence(error)) from error
    except ValueError as error:
        raise click.UsageError(f"{error}; see --help for how --capacity and --type look") from error


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ValueError(f"{text!r} is not NAME=VALUE")
    return name, value


def _type(name: str, text: str) -> dict[str, Any]:
    spot, on_demand, gpu, gpus = ([*text.split(":"), "", "", ""])[:4]
    prices = {"spot_usd_per_hour": float(spot), "on_demand_usd_per_hour": float(on_demand)}
    return {"name": name, **prices, "gpu": gpu, "gpus": int(gpus or (1 if gpu else 0))}


def _change(directory: Path, root: str, machine: str, verb: str, body: dict[str, Any] | None, output: str) -> None:
    known = _resolve(_call(directory, "GET", "/v1/admin/machines"), machine)
    if known is None:
        _fail(_EXIT_NOT_FOUND, f"no machine and no node is called {machine!r}; `list` shows all")
    changed = _call(directory, "POST", f"/v1/{root}/{known['id']}/{verb}", body)
    if output == "json":
        click.echo(json.dumps(changed))
    else:
        click.echo(f"{changed['id']} (node {changed['node']}): {changed['state']} {_note(changed)}".rstrip())


def _resolve(machines: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """Return the machine with this id, else the last one of this node, one that has not ended before one that has."""
    named = [each for each in machines if each["id"] == name]
    of_node = [each for each in machines if each["node"] == name]
    alive = [each for each in of_node if each["state"] != "terminated"]
    return next(iter(named or alive[::-1] or of_node[::-1]), None)


def _note(machine: dict[str, Any]) -> str:
    announced = f"preempted at {machine['preempt_at']:.0f}" if machine["preempt_at"] else ""
    frozen = "frozen" if machine["frozen"] else ""
    return " ".join(part for part in (machine["end_cause"], announced, frozen, machine["message"]) if part)


def _call(directory: Path, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """Make one call; what goes wrong ends the program with its exit code."""
    from provisioners.calls import NoAnswerError, NotSentError
    from provisioners.localcloud.client import call

    try:
        answer = call(directory, method, path, timeout_s=TIMEOUT_S, body=None if body is None else json.dumps(body))
    except (NotSentError, NoAnswerError) as error:
        _fail(_EXIT_UNREACHABLE, str(error))
    if answer.status != 200:
        _fail_as(answer)
    return json.loads(answer.content)


def _fail_as(answer: Answer) -> NoReturn:
    """End the program as the server's refusal says."""
    if answer.content_type != "application/json":
        _fail(_EXIT_FAILED, f"the server failed ({answer.status}): see its log")
    refusal = json.loads(answer.content)
    codes = {"not-found": _EXIT_NOT_FOUND, "refused": _EXIT_REFUSED}
    _fail(codes.get(refusal["kind"], _EXIT_FAILED), refusal["message"])


def _fail(code: int, message: str) -> NoReturn:
    click.echo(f"spotsup-localcloud: {message}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
