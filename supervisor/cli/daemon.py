"""`spotsupd`: the daemon's own command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from spotsup_trainer import __version__

from supervisor.cli import account, alert, catalogue, etcd, init, journal, machine, user
from supervisor.cli.common import EXIT_CODES, config_options, finding_line, output_option, print_json
from supervisor.cli.completing import HelpfulGroup, Place

if TYPE_CHECKING:
    from supervisor.cli.check import CheckResult
    from supervisor.config import Config


@click.group(
    cls=HelpfulGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"Exit codes: {'; '.join(f'{code} {meaning}' for code, meaning in EXIT_CODES.items())}.",
)
@click.version_option(__version__, prog_name="spotsupd")
def main() -> None:
    """Keep elastic PyTorch jobs running on spot machines."""


@main.command()
@config_options
def run(config: Config, embedded_etcd: bool) -> None:
    """Run the daemon until SIGTERM or Ctrl-C. Jobs keep training when it stops."""
    from supervisor.app import run_daemon

    set_up_logging()
    run_daemon(config, embedded_etcd=embedded_etcd, version=__version__)


@main.command()
@config_options
@click.option("--timeout", "timeout_s", type=float, default=60.0, show_default=True, help="Seconds for each cloud.")
@click.option(
    "--job",
    "job_path",
    type=click.Path(path_type=Path),
    help="Also look for machines for a job file, and try its object store.",
)
@click.option(
    "--from-node",
    "node_type",
    metavar="TYPE",
    help="Also have the running daemon boot one machine of this instance type, which needs no GPU, and end it: tries "
    "the way to etcd and, with --job, its environment, file systems and object store from there. Costs cents.",
)
@output_option
@click.pass_context
def check(
    context: click.Context,
    config: Config,
    embedded_etcd: bool,
    timeout_s: float,
    job_path: Path | None,
    node_type: str | None,
    output: str,
) -> None:
    """Test the configuration, and say how to fix what fails.

    Tests credentials, quota, permissions, images, etcd, SSH, secrets and the channels of alerts. Without --from-node it
    starts nothing and launches nothing. Exit code 1 if a test fails.
    """
    import logging

    from supervisor.cli.check import check_installation
    from supervisor.cli.check_job import read_job

    # SDKs log their errors too; here each error is a finding of one sentence.
    logging.getLogger().addHandler(logging.NullHandler())
    config_path = context.params["config_path"]
    found = check_installation(
        config,
        embedded_etcd=embedded_etcd,
        timeout_s=timeout_s,
        files=[config_path.with_name("environment")] if config_path else [],
        job=read_job(job_path) if job_path else None,
    )
    if node_type:
        found.append(_from_node(config, job_path, node_type, ok=all(each.finding.ok for each in found)))
    ok = all(each.finding.ok for each in found)
    if output == "json":
        rows = [
            {
                "subject": each.subject,
                "check": each.finding.what,
                "ok": each.finding.ok,
                "message": each.finding.message,
            }
            for each in found
        ]
        print_json({"ok": ok, "findings": rows})
    else:
        for each in found:
            click.echo(finding_line(each.subject, each.finding))
    sys.exit(0 if ok else 1)


def _from_node(config: Config, job_path: Path | None, node_type: str, *, ok: bool) -> CheckResult:
    from provisioners.base import Finding
    from supervisor.cli.check import CheckResult
    from supervisor.cli.check_node import check_from_node

    def say(text: str) -> None:
        click.echo(f"spotsupd: {text}", err=True)

    if not ok:
        return CheckResult("node", Finding("from a node", ok=False, message="not tried: fix what is named above first"))
    return CheckResult("node", check_from_node(config.socket, job_path, node_type, say))


def set_up_logging() -> None:
    """Send the daemon's log to stderr: one line per event, or one JSON object with SPOTSUP_LOG=json."""
    import structlog

    as_json = os.environ.get("SPOTSUP_LOG") == "json"
    # structlog's own choice, where rich is installed, prints the local variables of each frame: jobs' secrets, too.
    console = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([structlog.processors.format_exc_info, structlog.processors.JSONRenderer()] if as_json else [console]),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


for command in (
    init.init,
    account.destroy,
    alert.alert,
    catalogue.catalogue,
    journal.export,
    journal.import_,
    journal.adopt,
    etcd.certificates,
    etcd.users,
    machine.machine,
    user.user,
):
    main.add_command(command)
# Loaded late: the simulator may not be installed.
assert isinstance(main, HelpfulGroup)
main.places = {
    "simulate": Place(
        "supervisor.cli.simulator",
        "simulate",
        "Play a job on a RECORDING of a spot market, by this daemon's own planner, and print what came of it.",
    )
}


if __name__ == "__main__":
    main()
