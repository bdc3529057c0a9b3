"""Azure's requests, and the reading of its answers: pure functions."""

from __future__ import annotations

import os
import subprocess
from urllib.parse import parse_qs, urlsplit

from provisioners.azure import launch
from tests.unit.test_azure_rules import FULL, IDENTITY, azure_from_within


def test_the_switch_has_the_machine_delete_itself() -> None:
    with azure_from_within() as (url, seen):
        switch = launch.dead_man("spotsup-6-team-a-n", FULL.model_copy(update={"endpoint": url}), 3600.0)
        assert switch is not None
        done = subprocess.run(
            ["/bin/sh", "-eu", "-c", switch.end],
            env={"PATH": os.environ["PATH"], "SPOTSUP_AZURE_METADATA": url},
            capture_output=True,
            timeout=60,
            check=False,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    (token, deletion) = seen
    asked = parse_qs(urlsplit(token[1]).query)
    assert (token[0], token[2]) == ("GET", "true")
    assert (asked["mi_res_id"], asked["resource"]) == ([IDENTITY], ["https://management.azure.com/"])
    assert (deletion[0], deletion[2]) == ("DELETE", "Bearer machines-token")
    where = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/spotsup-6-team-a-n"
    assert urlsplit(deletion[1]).path == where
