"""The units: the settings that keep a promise."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

from bootstrap.agent.unit import CONFINEMENT, agent_unit
from bootstrap.model import Paths

FOLDER = Path(__file__).resolve().parents[2] / "systemd"
UNITS = sorted(path.name for path in FOLDER.iterdir())


class Unit(ConfigParser):
    """A unit file: names keep their case. A key that is given twice keeps its last value here."""

    def __init__(self, name: str) -> None:
        super().__init__(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
        self.read_string((FOLDER / name).read_text(encoding="utf-8"))

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def service(name: str) -> dict[str, str]:
    return dict(Unit(name)["Service"])


def test_all_units_are_there() -> None:
    assert UNITS == [
        "spotsup-agent.service",
        "spotsup-etcd.service",
        "spotsupd.service",
    ]


def test_the_daemon_is_restarted_and_watched_and_leaves_its_machines_alone() -> None:
    unit = service("spotsupd.service")
    assert unit["ExecStart"] == "/opt/spotsup/.venv/bin/spotsupd run --config /etc/spotsup/spotsupd.toml"
    assert unit["Type"] == "notify"
    assert unit["Restart"] == "always"
    assert unit["KillMode"] == "process"
    assert int(unit["WatchdogSec"]) <= 60
    assert unit["StateDirectory"] == "spotsup"
    assert Unit("spotsupd.service")["Unit"]["StartLimitIntervalSec"] == "0"
    assert "network-online.target" in Unit("spotsupd.service")["Unit"]["After"].split()


def test_etcd_listens_on_loopback_and_keeps_its_data_with_the_daemons() -> None:
    text = (FOLDER / "spotsup-etcd.service").read_text(encoding="utf-8")
    urls = re.findall(r"https?://([^\s:]+)", re.sub(r"(?m)^#.*$", "", text))
    assert set(urls) == {"127.0.0.1"}
    assert "Environment=ETCD_DATA_DIR=/var/lib/spotsup/etcd\n" in text
    assert text.index("Environment=ETCD_LISTEN_CLIENT_URLS") < text.index("EnvironmentFile=")
    assert service("spotsup-etcd.service")["Type"] == "notify"
    assert service("spotsup-etcd.service")["Restart"] == "always"


def test_bootstrap_starts_agents_as_the_unit_does() -> None:
    assert CONFINEMENT in (FOLDER / "spotsup-agent.service").read_text(encoding="utf-8")
    unit = agent_unit(Paths('/home/u/a "b" 100% $HOME', "n1"), "ubuntu", "k")
    assert unit.endswith(CONFINEMENT)
    assert 'Environment="SPOTSUP_AGENT_FOLDER=/home/u/a \\"b\\" 100%% $HOME/nodes/n1" SPOTSUP_AGENT_KEY=k\n' in unit
    assert 'ExecStart=/bin/sh "/home/u/a \\"b\\" 100%% $$HOME/nodes/n1/agent.sh"\n' in unit


def test_nothing_outlives_the_agent_and_its_workers_may_finish_their_checkpoint() -> None:
    unit = service("spotsup-agent.service")
    assert unit["KillMode"] == "mixed"
    assert unit["Slice"] == "spotsup.slice"
    assert unit["OOMPolicy"] == "continue"
    # SIGKILL is how bootstrap ends an agent that does not leave: it stays ended.
    assert (unit["Restart"], unit["RestartPreventExitStatus"]) == ("on-abnormal", "SIGKILL")
    assert int(unit["TimeoutStopSec"]) > 60
