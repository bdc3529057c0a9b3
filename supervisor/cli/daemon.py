"""`spotsupd`: the daemon's own command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from supervisor.config import Config

VERSION = "0.1.0"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="spotsupd")
def main() -> None:
    """Keep elastic PyTorch jobs running on spot machines."""


def config_options(command: Callable[..., None]) -> Callable[..., None]:
    """What `run` and `check` have in common."""
    for option in (
        click.option("--socket", "socket_path", type=click.Path(path_type=Path), help="Overrides api.socket."),
        click.option("--state-dir", type=click.Path(path_type=Path), help="Overrides state_dir."),
        click.option(
            "--embedded-etcd", is_flag=True, help="Start etcd beside the daemon, its data in the state folder."
        ),
        click.option(
            "--config", "config_path", type=click.Path(path_type=Path), help="A TOML file; without it, defaults."
        ),
    ):
        command = option(command)
    return command


def _config(config_path: Path | None, state_dir: Path | None, socket_path: Path | None) -> Config:
    from supervisor.config import check_paths, load_config

    config = load_config(config_path)
    if state_dir is not None:
        config = config.model_copy(update={"state_dir": str(state_dir.absolute())})
    if socket_path is not None:
        config = config.model_copy(update={"api": config.api.model_copy(update={"socket": str(socket_path)})})
    return check_paths(config)


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Errors become one sentence and an exit code."""
    from supervisor.errors import SpotsupError

    try:
        yield
    except SpotsupError as error:
        click.echo(f"spotsupd: {error}", err=True)
        sys.exit(error.exit_code)


@main.command()
@config_options
def run(config_path: Path | None, embedded_etcd: bool, state_dir: Path | None, socket_path: Path | None) -> None:
    """Run the daemon until it is told to stop (SIGTERM or Ctrl-C)."""
    with _one_sentence():
        config = _config(config_path, state_dir, socket_path)
        from supervisor.cli.logs import set_up_logging
        from supervisor.runtime.daemon import run_daemon

        set_up_logging()
        run_daemon(config, embedded_etcd=embedded_etcd, version=VERSION)


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
    with _one_sentence():
        config = _config(config_path, state_dir, socket_path)
        import logging

        from supervisor.runtime.check import check_installation

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


if __name__ == "__main__":
    main()
