"""`spotsupd`: the daemon's own command line."""

from __future__ import annotations

import sys
from pathlib import Path

import click

VERSION = "0.1.0"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="spotsupd")
def main() -> None:
    """Keep elastic PyTorch jobs running on spot machines."""


@main.command()
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="A TOML file; without it, defaults.")
@click.option("--embedded-etcd", is_flag=True, help="Start etcd beside the daemon, its data in the state folder.")
@click.option("--state-dir", type=click.Path(path_type=Path), help="Overrides state_dir.")
@click.option("--socket", "socket_path", type=click.Path(path_type=Path), help="Overrides api.socket.")
def run(config_path: Path | None, embedded_etcd: bool, state_dir: Path | None, socket_path: Path | None) -> None:
    """Run the daemon until it is told to stop (SIGTERM or Ctrl-C)."""
    from supervisor.cli.logs import set_up_logging
    from supervisor.config import check_paths, load_config
    from supervisor.errors import SpotsupError
    from supervisor.runtime.daemon import run_daemon

    try:
        config = load_config(config_path)
        if state_dir is not None:
            config = config.model_copy(update={"state_dir": str(state_dir.absolute())})
        if socket_path is not None:
            config = config.model_copy(update={"api": config.api.model_copy(update={"socket": str(socket_path)})})
        set_up_logging()
        run_daemon(check_paths(config), embedded_etcd=embedded_etcd, version=VERSION)
    except SpotsupError as error:
        click.echo(f"spotsupd: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
