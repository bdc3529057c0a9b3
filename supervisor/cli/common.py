"""What the commands of `spotsupctl` and `spotsupd` have in common."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

if TYPE_CHECKING:
    from spotsup.transport import Transport

    from provisioners.base import Finding
    from supervisor.config import Config

EXIT_CODES = {
    0: "done",
    1: "failed",
    2: "wrong usage: a command line, a job file or a configuration that cannot be right",
    3: "the daemon cannot be reached",
    4: "no such job or node",
    5: "refused: understood, but not possible now",
}
ENDED = frozenset({"succeeded", "failed", "cancelled"})
FOLLOW_S = 0.5


def is_over(job: Mapping[str, Any]) -> bool:
    """True if a job has ended and its log is whole: its nodes are kept until they have sent the end of it."""
    return job["state"] in ENDED and not job["nodes"]["training"]


def output_option(command: Callable[..., None]) -> Callable[..., None]:
    """`-o json` on every command."""
    option = click.option(
        *("-o", "--output"),
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="text is for people and may shorten long lists; json is complete.",
    )
    return option(command)


@contextmanager
def exit_on_error(program: str) -> Iterator[None]:
    """Turn an error into one sentence on stderr and an exit code."""
    from supervisor.errors import SpotsupError

    try:
        yield
    except SpotsupError as error:
        click.echo(f"{program}: {error}", err=True)
        sys.exit(error.exit_code)


def finding_line(subject: str, finding: Finding) -> str:
    """Return a result of a check, in one line whatever text a cloud returned."""
    return f"{'ok    ' if finding.ok else 'not ok'}  {subject}, {finding.what}: {' '.join(finding.message.split())}"


def print_json(value: Any) -> None:
    """Print JSON for scripts."""
    click.echo(json.dumps(value, indent=2))


# -- spotsupctl --------------------------------------------------------------------------------------------


@contextmanager
def connected(context: click.Context) -> Iterator[Transport]:
    """Yield a client of the daemon, for one command."""
    from spotsup.transport import Transport

    daemon = Transport(context.obj)
    try:
        with exit_on_error("spotsupctl"):
            yield daemon
    finally:
        daemon.close()
        if daemon.leader:
            click.echo(f"spotsupctl: answered by a standby; {daemon.leader} leads and acts on commands", err=True)
        if daemon.etcd_away_since:
            seconds = max(0, round(time.time() - daemon.etcd_away_since))
            click.echo(
                f"spotsupctl: etcd has not answered the daemon for {seconds} s: jobs and nodes are shown as of then, "
                "and nothing is decided; training goes on",
                err=True,
            )


def job_path(job: str, rest: str = "") -> str:
    """Return the API's path of a job, whatever a user typed as its name."""
    return _path("jobs", job, rest)


def node_path(node: str, rest: str = "") -> str:
    """Return the API's path of a node."""
    return _path("nodes", node, rest)


def sweep_path(sweep: str, rest: str = "") -> str:
    """Return the API's path of a sweep."""
    return _path("sweeps", sweep, rest)


def secret_path(name: str, rest: str = "") -> str:
    """Return the API's path of a secret."""
    return _path("secrets", name, rest)


def _path(kind: str, name: str, rest: str) -> str:
    if not name:
        raise click.UsageError(f"the name of the {kind.removesuffix('s')} is empty")
    return f"/v1/{kind}/{quote(name, safe='')}{rest}"


def read_output(daemon: Transport, job: str, node: str = "", after: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the parts of a job's output after a position that are there now, each with `chunks` and its own
    `position`."""
    more = True
    while more:
        part = daemon.get(job_path(job, "/logs"), node=node, after=str(after) if after else "")
        after, more = part["position"], part["more"]
        yield part


def all_output(daemon: Transport, job: str, node: str = "") -> list[dict[str, Any]]:
    """Return all chunks of a job's output that are kept, each once."""
    parts = read_output(daemon, job, node)
    return list({(each["node"], each["chunk"]): each for part in parts for each in part["chunks"]}.values())


def warn(sentences: Sequence[str]) -> None:
    """Print the daemon's warnings, on stderr."""
    for sentence in sentences:
        click.echo(f"spotsupctl: warning: {sentence}", err=True)


# -- spotsupd ----------------------------------------------------------------------------------------------


def config_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the options by which commands of `spotsupd` find their configuration, which they get as `config`."""

    @wraps(command)
    def run(config_path: Path | None, state_dir: Path | None, socket_path: Path | None, **rest: Any) -> None:
        with exit_on_error("spotsupd"):
            command(config=_config(config_path, state_dir, socket_path), **rest)

    for option in (
        click.option("--socket", "socket_path", type=click.Path(path_type=Path), help="Overrides api.socket."),
        click.option("--state-dir", type=click.Path(path_type=Path), help="Overrides state_dir."),
        click.option(
            "--embedded-etcd", is_flag=True, help="Start etcd beside the daemon, with its data in the state folder."
        ),
        click.option(
            "--config", "config_path", type=click.Path(path_type=Path), help="The configuration, spotsupd.toml."
        ),
    ):
        run = option(run)
    return run


def _config(config_path: Path | None, state_dir: Path | None, socket_path: Path | None) -> Config:
    """Return the configuration, with what the command line overrides. Raises UsageError."""
    from supervisor.config import check_paths, load_config

    config = load_config(config_path)
    if state_dir is not None:
        config = config.model_copy(update={"state_dir": str(state_dir.absolute())})
    if socket_path is not None:
        config = config.model_copy(
            update={"api": config.api.model_copy(update={"socket": str(socket_path.absolute())})}
        )
    return check_paths(config)
