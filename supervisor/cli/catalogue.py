"""`spotsupd catalogue`: the instance types that clouds describe themselves."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from supervisor.cli.common import config_options, output_option, print_json

if TYPE_CHECKING:
    from supervisor.config import Config


@click.group()
def catalogue() -> None:
    """The instance types that jobs may run on."""


@catalogue.command()
@config_options
@click.option("--timeout", "timeout_s", type=float, default=60.0, show_default=True, help="Seconds for each cloud.")
@output_option
def refresh(config: Config, embedded_etcd: bool, timeout_s: float, output: str) -> None:  # noqa: ARG001
    """Read from each configured cloud which instance types with GPUs it has now.

    The result is a file per cloud in the state folder, which adds to the built-in catalogue. The daemon reads it when
    it starts. A cloud that cannot be read keeps its last file. Exit code 1 if one could not be read.
    """
    from provisioners.base import ProvisionerError
    from provisioners.catalog import load_catalog
    from provisioners.refreshed import file_of, merged_types, text_of, write
    from provisioners.registry import CLOUDS
    from supervisor.clouds import clouds_of

    rows, known = [], load_catalog()
    for name in clouds_of(config):
        descriptor, path = CLOUDS[name], file_of(config.state, name)
        if descriptor.types is None:
            continue
        try:
            source, found = descriptor.types(config.cloud(name), timeout_s)
            types, gpus = merged_types(found, known, name)
            write(path, text_of(name, source, types, gpus, time.time()))
        except (ProvisionerError, OSError, ValueError) as error:
            rows.append({"cloud": name, "ok": False, "message": f"{error}; {path} is as it was"})
            continue
        new = sorted({each.name for each in types} - {each.name for each in known.cloud(name).types})
        more = f", not in the built-in catalogue: {', '.join(new)}" if new else ""
        rows.append({"cloud": name, "ok": True, "message": f"{len(types)} types with GPUs in {path}{more}"})
    if output == "json":
        print_json({"ok": all(each["ok"] for each in rows), "clouds": rows})
    else:
        for each in rows:
            click.echo(
                f"{'ok    ' if each['ok'] else 'not ok'}  {each['cloud']}: {' '.join(str(each['message']).split())}"
            )
    sys.exit(0 if all(each["ok"] for each in rows) else 1)
