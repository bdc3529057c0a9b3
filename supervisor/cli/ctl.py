"""`spotsupctl`: the users' command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource
from spotsup_trainer import __version__

from supervisor.cli.common import EXIT_CODES, exit_on_error
from supervisor.cli.completing import HelpfulGroup

if TYPE_CHECKING:
    from supervisor.cli.contexts import Context


def default_socket(host: Path, own: Path, *, root: bool) -> Path:
    """The daemon's socket below one of two state folders: the host's for root, and for users without a daemon of their
    own where the host has one.
    """
    folder = host if root or (host.is_dir() and not own.is_dir()) else own
    return folder / "spotsupd.sock"


def default_daemon(context: str | None = None) -> Path | Context:
    """The daemon of a context, or of a command without --context and --socket. Raises SpotsupError."""
    if context is None and (socket := os.environ.get("SPOTSUP_SOCKET")):
        return Path(socket)
    context = context or os.environ.get("SPOTSUP_CONTEXT")
    file = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "spotsup" / "contexts.json"
    if context is None and not file.exists():
        return _default_socket()  # and nothing more is loaded
    from supervisor.cli import contexts

    kept = contexts.load(file)
    return kept.get(context or kept.current) or _default_socket()


def _default_socket() -> Path:
    # As in supervisor.config, without loading pydantic.
    own = Path(os.environ.get("XDG_STATE_HOME", "~/.local/state")).expanduser() / "spotsup"
    return default_socket(Path("/var/lib/spotsup"), own, root=os.geteuid() == 0)


@click.group(
    cls=HelpfulGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"Exit codes: {'; '.join(f'{code} {meaning}' for code, meaning in EXIT_CODES.items())}.",
)
@click.version_option(__version__, prog_name="spotsupctl")
@click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path),
    envvar="SPOTSUP_SOCKET",
    help="The daemon's socket. Also SPOTSUP_SOCKET.",
)
@click.option(
    "--context",
    "context_name",
    envvar="SPOTSUP_CONTEXT",
    help="A daemon that `login` has made known; `socket`: the one of this computer. Also SPOTSUP_CONTEXT.",
)
@click.pass_context
def main(context: click.Context, socket_path: Path | None, context_name: str | None) -> None:
    """Train on spot machines: submit a job, and spotsupd keeps it running."""
    explicit = context.get_parameter_source("context_name") is ParameterSource.COMMANDLINE
    context.obj = None if explicit else socket_path
    if context.obj is None and context.invoked_subcommand not in {"login", "logout", "contexts", "completion", "init"}:
        with exit_on_error("spotsupctl"):
            context.obj = default_daemon(context_name if explicit else None)


_MODULES = {
    "change": ("cancel", "drain", "limits", "pause", "resume", "scale"),
    "completing": ("completion",),
    "dashboard": ("dashboard",),
    "login": ("contexts:list_contexts", "login", "logout"),
    "new_file": ("init",),
    "operate": ("audit", "daemon", "ssh"),
    "report": ("report",),
    "runs": ("runs",),
    "status": ("cost", "events", "list:list_jobs", "logs", "nodes", "queue", "status", "top"),
    "submit": ("plan", "submit"),
    "sweep": ("sweep",),
    "tensorboard": ("tensorboard",),
}
_ALL = {
    name: f"supervisor.cli.{module}:{attribute or name.replace('-', '_')}"
    for module, commands in _MODULES.items()
    for name, _, attribute in (each.partition(":") for each in commands)
}
assert isinstance(main, HelpfulGroup)
main.places = _ALL


if __name__ == "__main__":
    main()
