"""What the commands of `spotsupd` have in common: their configuration, and how they tell of errors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from supervisor.config import Config


def config_options(command: Callable[..., None]) -> Callable[..., None]:
    """What the commands of `spotsupd` have in common."""
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


def config_of(config_path: Path | None, state_dir: Path | None, socket_path: Path | None) -> Config:
    """The configuration, with what the command line overrides. Raises UsageError."""
    from supervisor.config import check_paths, load_config

    config = load_config(config_path)
    if state_dir is not None:
        config = config.model_copy(update={"state_dir": str(state_dir.absolute())})
    if socket_path is not None:
        config = config.model_copy(update={"api": config.api.model_copy(update={"socket": str(socket_path)})})
    return check_paths(config)


@contextmanager
def one_sentence() -> Iterator[None]:
    """Errors become one sentence and an exit code."""
    from supervisor.errors import SpotsupError

    try:
        yield
    except SpotsupError as error:
        click.echo(f"spotsupd: {error}", err=True)
        sys.exit(error.exit_code)
