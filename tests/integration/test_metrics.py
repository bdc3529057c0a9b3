"""Metrics on a port of the loopback interface, and what promtool says of them and of the rules."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from supervisor.api.metrics import metrics_app
from supervisor.api.serving import ApiServer, bind_address
from supervisor.config import parse_config
from supervisor.errors import StartError, UsageError
from supervisor.metrics.export import Exporter
from supervisor.metrics.observer import Observer
from tests.support.documents import blocks
from tests.unit.test_metrics import DOCUMENT, RULES, Leads, Mirror, picture, training

PROMTOOL = shutil.which("promtool")


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
    (commands,) = blocks(DOCUMENT, "sh")
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


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: apt-get install prometheus)")
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
