"""docs/nodes.md's job that measures the network, on the local cloud: a table in its log, and no machine is left."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tools.stack import ROOT, Stack

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(300)]


def test_two_nodes_are_measured_and_given_back(stack: Stack, tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(name: network\n.*?)```", (ROOT / "docs" / "nodes.md").read_text(), re.DOTALL)
    job = yaml.safe_load(text)
    del job["resources"], job["placement"]
    job |= {"nodes": 2, "code": str(ROOT / job["code"]), "run": f"{job['run'].partition(' ')[0]} --to 4K"}
    (tmp_path / "network.yaml").write_text(yaml.safe_dump(job))
    done = stack.ctl("submit", str(tmp_path / "network.yaml"), "--follow")
    assert done.returncode == 0, done.stderr
    stack.wait_for(lambda: not stack.machines(), 60.0, "all machines to be released")
    log = stack.ctl("logs", "network").stdout
    assert "all_reduce of float32 over 2 ranks on 2 nodes (cpu), gloo, torch " in log
    assert [line.split()[-6] for line in log.splitlines() if line.endswith(" 0")] == ["1024", "2048", "4096"]
