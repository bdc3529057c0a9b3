"""Metrics on a port of the loopback interface, and what promtool says of them and of the rules."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from supervisor.api.daemon.metrics import metrics_app
from supervisor.api.serving import ApiServer, bind_address
from supervisor.config import parse_config
from supervisor.errors import StartError, UsageError
from supervisor.metrics.export import Exporter
from supervisor.metrics.observer import Observer
from tests.support.documents import blocks
from tests.unit.test_metrics import DOCUMENT, RULES, Leads, Mirror, picture, training
from tools.monitoring import find_promtool, unpack_promtool
from tools.setup.errors import SetupError
from tools.stack import ROOT

PROMTOOL = find_promtool()


def text() -> bytes:
    return Exporter(Observer(Mirror(), Leads()), lambda: picture(training())).text()


@contextmanager
def serving() -> Iterator[str]:
    """The address of a server with the metrics."""
    listening = bind_address("127.0.0.1:0", "metrics.listen")
    server = ApiServer(metrics_app(text), listening)
    server.start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.stop()


def test_the_port_serves_the_metrics_and_nothing_else() -> None:
    with serving() as address, httpx.Client(base_url=f"http://{address}", timeout=10.0, trust_env=False) as client:
        reply = client.get("/metrics")
        assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert "spotsup_leading 1.0" in reply.text
        for path in ("/v1/jobs", "/v1/targets", "/openapi.json", "/docs", "/"):
            assert client.get(path).status_code == 404


def test_the_documented_configuration_and_command_work() -> None:
    (config,) = blocks(DOCUMENT, "toml")
    documented = parse_config(tomllib.loads(config.text), "f").metrics.listen
    (commands,) = (block for block in blocks(DOCUMENT, "sh") if "curl" in block.text)
    with serving() as address:
        command = ["sh", "-c", commands.text.replace(documented, address)]
        done = subprocess.run(command, check=True, capture_output=True, timeout=30)
    assert b"spotsup_jobs{" in done.stdout


@pytest.mark.parametrize("address", ["0.0.0.0:9464", "10.0.0.5:9464", "monitoring.example:9464", "9464"])
def test_metrics_are_not_served_to_the_network(address: str) -> None:
    with pytest.raises(UsageError, match=r"metrics\.listen"):
        parse_config({"metrics": {"listen": address}}, "f")


def test_a_port_that_is_taken_names_its_key() -> None:
    with serving() as address, pytest.raises(StartError, match=r"set metrics\.listen to another address"):
        bind_address(address, "metrics.listen")


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool here: `make monitoring` brings it")
def test_promtool_finds_nothing_wrong(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    (block,) = blocks(DOCUMENT, "yaml")
    config = tmp_path / "prometheus.yml"
    config.write_text(block.text.replace("/etc/prometheus/spotsup-alerts.yml", str(RULES)))
    subprocess.run([PROMTOOL, "check", "config", str(config)], check=True, timeout=30, capture_output=True)
    subprocess.run([PROMTOOL, "check", "metrics"], input=text(), check=True, timeout=30, capture_output=True)
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(RULES.read_text().replace(">= 3", ">= 3 ("))
    assert subprocess.run([PROMTOOL, "check", "rules", str(wrong)], check=False, timeout=30).returncode


def test_the_documented_command_makes_the_links_of_alerts_absolute(tmp_path: Path) -> None:
    (command,) = (block.text for block in blocks(DOCUMENT, "sh") if "runbook_url" in block.text)
    (tmp_path / "monitoring").symlink_to(ROOT / "monitoring")
    subprocess.run(["sh", "-ec", command], cwd=tmp_path, check=True, timeout=30)
    made = tmp_path / "spotsup-alerts.yml"
    rules = [rule for group in yaml.safe_load(made.read_text())["groups"] for rule in group["rules"]]
    for rule in rules:
        address = "https://wiki.example.org/spotsup/docs/monitoring.md#" + rule["alert"].lower()
        assert rule["annotations"]["runbook_url"] == address
    assert len(rules) > 10
    if PROMTOOL is not None:
        subprocess.run([PROMTOOL, "check", "rules", str(made)], check=True, timeout=30, capture_output=True)


def test_promtool_is_found_where_it_was_unpacked_and_its_lack_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    assert find_promtool(tmp_path) is None
    with pytest.raises(SetupError, match="sudo apt-get install prometheus brings it"):
        unpack_promtool(tmp_path)
    unpacked = tmp_path / ".tools" / "promtool" / "usr" / "bin" / "promtool"
    unpacked.parent.mkdir(parents=True)
    unpacked.touch()
    assert find_promtool(tmp_path) == str(unpacked)
