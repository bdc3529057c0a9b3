"""`spotsupd`: the daemon's own command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from spotsup_trainer import __version__

from supervisor.cli import journal
from supervisor.cli.options import config_of, config_options, one_sentence


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="spotsupd")
def main() -> None:
    """Keep elastic PyTorch jobs running on spot machines."""


@main.command()
@config_options
def run(config_path: Path | None, embedded_etcd: bool, state_dir: Path | None, socket_path: Path | None) -> None:
    """Run the daemon until it is told to stop (SIGTERM or Ctrl-C)."""
    with one_sentence():
        config = config_of(config_path, state_dir, socket_path)
        from supervisor.app import run_daemon
        from supervisor.cli.logs import set_up_logging

        set_up_logging()
        run_daemon(config, embedded_etcd=embedded_etcd, version=__version__)


@main.command()
@config_options
@click.option("--timeout", "timeout_s", type=float, default=60.0, show_default=True, help="Seconds for each cloud.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def check(
    config_path: Path | None,
    embedded_etcd: bool,
    state_dir: Path | None,
    socket_path: Path | None,
    timeout_s: float,
    output: str,
) -> None:
    """Say what works and what does not, and how to mend it: credentials, quota, permissions, images, etcd, SSH, Slack.

    Starts nothing and launches nothing. Exit code 1 where something is not as it should be.
    """
    with one_sentence():
        config = config_of(config_path, state_dir, socket_path)
        import logging

        from supervisor.cli.check import check_installation

        # What an SDK has to say comes as a finding, in one sentence.
        logging.getLogger().addHandler(logging.NullHandler())
        found = check_installation(config, embedded_etcd=embedded_etcd, timeout_s=timeout_s)
    ok = all(each.finding.ok for each in found)
    if output == "json":
        rows = [
            {
                "subject": each.subject,
                "what": each.finding.what,
                "ok": each.finding.ok,
                "message": each.finding.message,
            }
            for each in found
        ]
        click.echo(json.dumps({"ok": ok, "findings": rows}, indent=2))
    else:
        for each in found:
            verdict = "ok    " if each.finding.ok else "not ok"
            # One line each, whatever words a cloud has sent.
            click.echo(f"{verdict}  {each.subject}, {each.finding.what}: {' '.join(each.finding.message.split())}")
    sys.exit(0 if ok else 1)


for command in (journal.export, journal.import_, journal.adopt):
    main.add_command(command)


if __name__ == "__main__":
    main()
