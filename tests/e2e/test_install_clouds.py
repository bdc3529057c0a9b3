"""docs/install.md, "From a laptop": its commands as they stand lead from an empty account to trained steps.

On each cloud's test cloud, through the real SDKs, with real machines. What differs from the document: where the test
cloud is, and that its machines use this environment's torch, as none of them can reach a package index.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioners.catalog import MachineType
from provisioners.localcloud.control import destroy
from provisioners.localcloud.store import Store
from supervisor.journal.etcd_server import EmbeddedEtcd
from tests.clouds.azure_machines import GROUP as RESOURCE_GROUP
from tests.clouds.azure_machines import SUBSCRIPTION
from tests.clouds.base import wire_cloud
from tests.clouds.gcp_compute import PROJECT
from tests.clouds.machines import real_machines
from tests.demo.clouds import to_toml
from tests.e2e.test_documents import run, write_files
from tests.support.combinations import others_nightly
from tests.support.documents import blocks
from tools.stack import ROOT

pytestmark = pytest.mark.timeout(300)

INSTALL = ROOT / "docs" / "install.md"
SECTIONS = {"aws": "On AWS", "gcp": "On Google Cloud", "azure": "On Azure"}
# What stands for an account's own names, in the document and in the test clouds.
OWN = {"my-project": PROJECT, "=ID": f"={SUBSCRIPTION}", "=training": f"={RESOURCE_GROUP}"}


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home with nothing in it; a short path, for the socket's. What was started there is ended."""
    folder = Path(tempfile.mkdtemp(prefix="home-"))
    for key in [key for key in os.environ if key.startswith(("AWS_", "AZURE_", "GOOGLE_", "CLOUDSDK_"))]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    try:
        yield folder
    finally:
        state = folder / ".local" / "state" / "spotsup"
        if (state / "etcd").exists():
            EmbeddedEtcd(state / "etcd").stop()
        if Store(folder / "machines").birth() is not None:
            destroy(folder / "machines")
        shutil.rmtree(folder)


def documented(cloud: str) -> list[str]:
    """The commands from `init` on, for this cloud."""
    found = {block.heading: block.commands() for block in blocks(INSTALL, "sh")}
    commands = found["From a laptop"]
    first = next(n for n, each in enumerate(commands) if each.startswith("spotsupd init"))
    elsewhere = [commands[first], *found["On another cloud"]]
    (init,) = (each for each in elsewhere if f"--cloud {cloud} " in each)
    (submit,) = (each for each in found[SECTIONS[cloud]] if " spotsupctl submit " in each)
    (kind,) = re.findall(r" --instance-type \S+", submit)
    adapted = [re.sub(r" --instance-type \S+", kind, each) for each in commands[first + 1 :]]
    return [init, *adapted]


def script_of(cloud: str, server: Any, ssh_port: int) -> str:
    """What a person types, with the test cloud in the account's place."""
    init, *rest = documented(cloud)
    for name, ours in OWN.items():
        init = init.replace(name, ours)
    settings = {"endpoint": server.url, "ssh_user": getpass.getuser(), "ssh_port": ssh_port}
    if cloud == "azure":
        settings |= {"endpoint_ca": server.ca, "prices": server.url}
    init += "".join(f" --set {key}={value}" for key, value in settings.items()) + " --yes"
    init += " --state-dir ~/.local/state/spotsup"  # where it is anyway, but for root
    node = {"python": sys.executable, "env": {"GLOO_SOCKET_IFNAME": "lo"}}
    table = "\n".join(["[node]", *(f"{key} = {to_toml(value)}" for key, value in node.items())])

    rest = [each.replace(" --environment requirements.txt", "") for each in rest]
    return "\n".join([init, f"cat >>~/.config/spotsup/spotsupd.toml <<'END'\n\n{table}\nEND", *rest, ENDING])


ENDING = """
spotsupctl logs first
spotsupctl nodes -o json >nodes.json
while [ "$(spotsupctl nodes -o json | grep '"state":' | grep -cv '"gone"')" != 0 ]; do sleep 0.5; done
kill $!
wait
spotsupd destroy --config ~/.config/spotsup/spotsupd.toml --yes
"""


def sell_small_machines(cloud: str, server: Any) -> None:
    """Those of the document, where the test cloud has not the cloud's whole list."""
    if cloud == "gcp":
        server.cloud.compute.new_types["e2-standard-2"] = MachineType(name="e2-standard-2", vcpus=2, memory_gib=8)
        server.cloud.compute.spot_prices["us-central1", "e2-standard-2"] = 0.01
    if cloud == "azure":
        small = MachineType(name="Standard_D2s_v5", vcpus=2, memory_gib=8)
        server.cloud.arm.sizes[small.name] = small
        server.cloud.arm.prices[small.name] = (0.02, 0.09)


@pytest.mark.parametrize("cloud", others_nightly(["aws"], SECTIONS))
def test_an_empty_account_leads_to_trained_steps_by_the_documented_commands(cloud: str, home: Path) -> None:
    write_files(blocks(INSTALL), home)
    with real_machines(home / "machines") as machines, wire_cloud(cloud, machines) as server:
        sell_small_machines(cloud, server)
        variables = {
            **server.environ,
            "HOME": str(home),
            "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}",
            "SPOTSUP_TOOLS": f"{ROOT}/.tools/root",
            "SPOTSUP_SOCKET": str(home / ".local" / "state" / "spotsup" / "spotsupd.sock"),
            "no_proxy": "127.0.0.1",
        }
        exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in variables.items())
        exports += "unset XDG_CONFIG_HOME XDG_STATE_HOME\n"
        said = run(exports + script_of(cloud, server, machines.ssh_port), home, timeout_s=270)
        assert re.search(r"step 9: loss [\d.]+$", said, re.MULTILINE), said
        assert re.search(r"\bdone$", said, re.MULTILINE)
        assert len(json.loads((home / "nodes.json").read_text())) == 2
        with server.cloud.fleet.lock:
            assert list(server.cloud.fleet.left()) == []
        assert "nothing of this installation is left in the account" in said
