"""`spotsupctl`: the users' command line."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource
from spotsup import __version__

from supervisor.cli.common import EXIT_CODES, exit_on_error
from supervisor.cli.completing import HelpfulGroup, Place


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


# By module: its commands, or `command:attribute`, with the line of `--help`, which loads none of them.
_COMMANDS = {
    "change": {
        "cancel": "End jobs and release their machines.",
        "delete": "Delete ended jobs with all that the daemon keeps of them: events, output, curves, costs, earlier "
        "runs.",
        "drain": "Replace nodes without losing a step.",
        "limits": "Show a job's limits, or change them.",
        "pause": "Checkpoint jobs and release their machines.",
        "resume": "Continue paused jobs from their checkpoints.",
        "scale": "Change how many nodes a job has.",
    },
    "completing": {"completion": "Print what makes a shell complete commands, options, and names of jobs and nodes."},
    "dashboard": {"dashboard": "Show jobs, fleet, queue and money in the browser."},
    "login": {
        "contexts:list_contexts": "List daemons, or use NAME from now on; `socket` is the one of this computer.",
        "login": "Use the daemon at URL (https://host:port) from now on, with the token that `spotsupd user add` has "
        "shown.",
        "logout": "Forget a context and its token; by default the current one.",
    },
    "new_file": {"init": "Write a job file for SCRIPT, asking at a terminal for what no option says."},
    "operate": {
        "audit": "Show who did what: every submission and change, also those that were refused.",
        "daemon": "Show, pause and resume the cluster's daemons.",
        "ssh": "Log in to a node of a job of yours, or run a command there.",
    },
    "report": {"report": "Report a job's speed, pauses and cost."},
    "runs": {"runs": "List the jobs that have ended, newest first; or compare two jobs."},
    "secret": {
        "secret": "Set, list and delete secrets: a job that names one in `secrets` gets its value as a variable."
    },
    "status": {
        "cost": "Show what jobs have cost, and cost per hour.",
        "events": "Tell what happened to a job, oldest first: a line for each happening, with all that came of it.",
        "list:list_jobs": "List jobs, newest first; with PATTERN, such as 'res*', only those with such names.",
        "logs": "Print the output of a job's nodes, from the first line that is kept.",
        "nodes": "List the nodes of all jobs.",
        "queue": "List the jobs that wait, in their order.",
        "status": "Show a job, its state and its nodes.",
        "top": "Show everything on one screen, until Ctrl-C.",
    },
    "submit": {"plan": "Show the offers and prices for a job.", "submit": "Submit a job."},
    "sweep": {"sweep": "Show and end sweeps: `submit --sweep` begins one."},
    "tensorboard": {"tensorboard": "Show the curves of a job, or of all jobs of a sweep, until Ctrl-C."},
}
assert isinstance(main, HelpfulGroup)
main.places = {
    name: Place(f"supervisor.cli.{module}", attribute or name.replace("-", "_"), line)
    for module, commands in _COMMANDS.items()
    for (name, _, attribute), line in ((each.partition(":"), line) for each, line in commands.items())
}


if __name__ == "__main__":
    main()
