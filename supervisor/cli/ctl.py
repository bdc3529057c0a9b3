"""`spotsupctl`: the users' command line."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource
from spotsup import __version__

from supervisor.cli.common import EXIT_CODES, exit_on_error
from supervisor.cli.completing import HelpfulGroup


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
        from spotsup.contexts import default_daemon

        with exit_on_error("spotsupctl"):
            context.obj = default_daemon(context_name if explicit else None)


_MODULES = {
    "bench_network": ("bench-network",),
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
