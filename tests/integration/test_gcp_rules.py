"""Compute Engine's requests, and the reading of its answers: pure functions."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from provisioners.gcp import launch
from tests.unit.test_gcp_rules import FULL, google


@pytest.mark.parametrize(("deletes", "off"), [(200, False), (403, True)])
def test_a_forgotten_machine_deletes_itself_or_else_shuts_down(tmp_path: Path, deletes: int, off: bool) -> None:
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/output\n')
    systemctl.chmod(0o755)
    with google(deletes=deletes) as (host, asked):
        settings = FULL.model_copy(update={"endpoint": f"http://{host}"})
        environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GCE_METADATA_HOST": host}
        script = f"set -eu\n{launch.dead_man_end(settings)}\n"
        done = subprocess.run(["/bin/sh", "-c", script], env=environ, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    last = asked[-1]
    url = "/compute/v1/projects/a-project/zones/us-central1-a/instances/spotsup-1"
    assert last == ("DELETE", url, "Bearer ya29.x-y")
    assert {flavour for verb, _, flavour in asked if verb == "GET"} == {"Google"}
    assert (tmp_path / "output").exists() is off
