"""What a tired person gets wrong while installing, through the real program: each ends in the one sentence of
tools/broken_setups, which is also docs/reference/broken-setups.md.
"""

from __future__ import annotations

import json
import os
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import structlog
import trustme
from click.testing import CliRunner
from spotsup_trainer.etcd import Etcd

import tests.integration.breaks_of_clouds  # noqa: F401 - it breaks the rows of clouds
from supervisor.cli.daemon import main
from supervisor.identity import Identity
from supervisor.journal.codec import dump
from supervisor.journal.connection import state_lock
from supervisor.model import ClusterRecord
from tests.integration.test_entry import other_wheel, refusal_of
from tests.support.broken_setups import AWS, AZURE, BREAKS, GCP, KEYS, SECRET, Etcds, Setup, breaks, closed_port, toml
from tests.support.disks import Full, ReadOnly, memory
from tests.support.etcd_server import etcd_server
from tests.support.interpreters import interpreter
from tests.support.s3 import DENIED, Fault, s3_here
from tests.support.secured_etcd import DAEMON, PHRASE, SecuredEtcd, a_job, secured_etcd
from tests.support.serving import serving
from tools.broken_setups import CLOUDS, ROWS, BrokenSetup
from tools.stack import ROOT

CHECK_TIMEOUT_S = 240.0
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def worker_secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredEtcd]:
    with secured_etcd(tmp_path_factory.mktemp("secured")) as made:
        with closing(made.client()) as etcd:
            etcd.call("/v3/auth/user/add", {"name": "weak", "password": "weak"})
        yield made


@pytest.fixture
def setup(
    tmp_path: Path, etcd_endpoint: str, worker_secured: SecuredEtcd, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Setup]:
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ))  # what rows and servers change ends with them
        os.environ.pop("SPOTSUP_SLACK_WEBHOOK", None)
        stack.callback(structlog.reset_defaults)  # `run` sets up the log of this process
        made = Setup(tmp_path, stack, Etcds(etcd_endpoint, worker_secured), monkeypatch)
        made.config["state_dir"] = str(made.state)
        made.values |= {"folder": str(tmp_path), "python": sys.executable}
        yield made


# -- the configuration -----------------------------------------------------------------------------------------


@breaks("config-missing")
def _(setup: Setup) -> None:
    setup.text = "-"


@breaks("config-not-toml")
def _(setup: Setup) -> None:
    setup.text = 'state_dir = "/var/lib/spotsup\n'


@breaks("config-unknown-key")
def _(setup: Setup) -> None:
    setup.config["slack"] = {"webhook": "https://hooks.slack.com/services/T0/B0/x"}


@breaks("config-unknown-section")
def _(setup: Setup) -> None:
    setup.config["amazon"] = {"regions": ["us-east-1"]}


@breaks("config-wrong-type")
def _(setup: Setup) -> None:
    setup.config["aws"] = {"regions": "us-east-1"}


@breaks("config-wrong-unit")
def _(setup: Setup) -> None:
    setup.config["timing"] = {"suspect_s": "30s"}


@breaks("config-too-small")
def _(setup: Setup) -> None:
    setup.config["aws"] = {"regions": ["us-east-1"], "dead_man_s": 60.0}


@breaks("config-order-of-times")
def _(setup: Setup) -> None:
    setup.config["timing"] = {"tick_s": 10.0}


@breaks("config-cluster-name")
def _(setup: Setup) -> None:
    setup.config["cluster"] = "Vision Team"


@breaks("config-required-key")
def _(setup: Setup) -> None:
    setup.config["gcp"] = {"regions": ["us-central1"]}


@breaks("config-listen-without-tls")
def _(setup: Setup) -> None:
    setup.config["etcd"] = {"listen": "10.0.0.5:2379"}


@breaks("config-relative-path")
def _(setup: Setup) -> None:
    setup.config["state_dir"] = "spotsup-state"


@breaks("config-socket-path")
def _(setup: Setup) -> None:
    path = f"/run/{'spotsup-' * 14}.sock"
    setup.config["api"] = {"socket": path}
    setup.values |= {"socket": path, "bytes": str(len(path))}


@breaks("config-no-cloud")
def _(setup: Setup) -> None:
    setup.config["local"] = {"enabled": False}


@breaks("config-plain-etcd")
def _(setup: Setup) -> None:
    setup.config["aws"] = {"regions": ["us-east-1"]}
    setup.etcd(endpoints=["http://10.0.0.5:2379"])


@breaks("config-loopback-etcd")
def _(setup: Setup) -> None:
    setup.config["aws"] = {"regions": ["us-east-1"]}
    setup.etcd(endpoints=["https://127.0.0.1:2379"], user="spotsupd")


@breaks("config-no-users")
def _(setup: Setup) -> None:
    setup.config["aws"] = {"regions": ["us-east-1"]}
    setup.etcd(endpoints=["https://10.0.0.5:2379"])


# -- the state folder and the key --------------------------------------------------------------------------------


@breaks("state-below-a-file")
def _(setup: Setup) -> None:
    setup.config["state_dir"] = setup.write("file", "") + "/state"


@breaks("state-in-use")
def _(setup: Setup) -> None:
    setup.stack.enter_context(state_lock(setup.state))


def _disk(setup: Setup) -> Path:
    """A file system for the state folder."""
    disk = setup.stack.enter_context(memory(setup.folder, 1))
    setup.config["state_dir"] = str(disk)
    (disk / "cluster.key").write_bytes(SECRET)
    (disk / "cluster.key").chmod(0o600)
    return disk


@breaks("state-full")
def _(setup: Setup) -> None:
    Full(_disk(setup)).inject()


@breaks("state-read-only")
def _(setup: Setup) -> None:
    ReadOnly(_disk(setup)).inject()


@breaks("key-readable")
def _(setup: Setup) -> None:
    setup.key(mode=0o644)


@breaks("key-cut")
def _(setup: Setup) -> None:
    setup.key(SECRET[:-1])


def _journal(setup: Setup, record: bytes, key: str = "cluster") -> None:
    setup.etcd(endpoints=[setup.etcds.plain])
    with closing(Etcd([setup.etcds.plain])) as etcd:
        etcd.put(f"{KEYS.world}{key}", record)
    setup.values |= {"mark": Identity(SECRET).mark}


@breaks("key-of-another-cluster")
def _(setup: Setup) -> None:
    _journal(setup, dump(ClusterRecord(1.0, "host:1", Identity(SECRET).mark)))
    setup.key(b"x" * 32)
    setup.values["own"] = Identity(b"x" * 32).mark


@breaks("key-lost")
def _(setup: Setup) -> None:
    _journal(setup, dump(ClusterRecord(1.0, "host:1", Identity(SECRET).mark)))


@breaks("journal-newer")
def _(setup: Setup) -> None:
    setup.key()
    _journal(setup, dump(ClusterRecord(1.0, "host:1", Identity(SECRET).mark)))
    _journal(setup, dump(a_job())[:-1] + b', "colour": 7}', "jobs/job")


@breaks("journal-older")
def _(setup: Setup) -> None:
    setup.key()
    _journal(setup, dump(ClusterRecord(1.0, "host:1", Identity(SECRET).mark)))
    _journal(setup, b'{"schema": 0}', "jobs/job")


# -- etcd ------------------------------------------------------------------------------------------------------


@breaks("etcd-down")
def _(setup: Setup) -> None:
    setup.etcd(endpoints=[f"http://127.0.0.1:{closed_port(setup)}"])


class _Page(BaseHTTPRequestHandler):
    status = 200

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.status)
        self.send_header("Content-Length", "11")
        self.end_headers()
        self.wfile.write(b"hello there")

    def log_message(self, *_: object) -> None:
        pass


def _page(setup: Setup, status: int = 200) -> str:
    """The URL of a web server that is neither etcd nor Slack."""
    handler = type("_Status", (_Page,), {"status": status})
    server = setup.stack.enter_context(serving(ThreadingHTTPServer(("127.0.0.1", 0), handler)))
    return f"http://127.0.0.1:{server.server_address[1]}"


@breaks("etcd-another-program")
def _(setup: Setup) -> None:
    setup.etcd(endpoints=[_page(setup)])


@breaks("etcd-plain-for-tls")
def _(setup: Setup) -> None:
    setup.etcd(endpoints=[setup.etcds.secured.endpoint.replace("https", "http")])


@breaks("etcd-tls-for-plain")
def _(setup: Setup) -> None:
    setup.etcd(endpoints=[setup.etcds.plain.replace("http", "https")], ca=str(setup.etcds.secured.tls.ca))


@breaks("etcd-wrong-ca")
def _(setup: Setup) -> None:
    trustme.CA().cert_pem.write_to_path(str(setup.folder / "ca.pem"))
    setup.etcd(**setup.etcds.login(ca=str(setup.folder / "ca.pem")))


@breaks("etcd-no-ca-file")
def _(setup: Setup) -> None:
    setup.etcd(**setup.etcds.login(ca=str(setup.folder / "nowhere.pem")))


def _etcd_with(setup: Setup, name: str, **more: Any) -> None:
    """An etcd with a certificate for a name."""
    authority = trustme.CA()
    made = authority.issue_cert(name, **more)
    ca, cert, key = (str(setup.folder / each) for each in ("ca.pem", "cert.pem", "key.pem"))
    authority.cert_pem.write_to_path(ca)
    made.cert_chain_pems[0].write_to_path(cert)
    made.private_key_pem.write_to_path(key)
    options = ["--cert-file", cert, "--key-file", key]
    server = setup.stack.enter_context(etcd_server(setup.folder / "etcd", options, scheme="https"))
    setup.etcd(endpoints=[server.endpoint], ca=ca)


@breaks("etcd-certificate-expired")
def _(setup: Setup) -> None:
    now = datetime.now(UTC)
    _etcd_with(setup, "127.0.0.1", not_before=now - timedelta(days=9), not_after=now - timedelta(days=1))


@breaks("etcd-certificate-not-yet-valid")
def _(setup: Setup) -> None:
    now = datetime.now(UTC)
    _etcd_with(setup, "127.0.0.1", not_before=now + timedelta(days=1), not_after=now + timedelta(days=9))


@breaks("etcd-certificate-of-another-name")
def _(setup: Setup) -> None:
    _etcd_with(setup, "etcd.example.org")


@breaks("etcd-wrong-password")
def _(setup: Setup) -> None:
    password = setup.write("password", "swordfish")
    setup.etcd(**setup.etcds.login(user=DAEMON, password_file=password))


@breaks("etcd-no-password-file")
def _(setup: Setup) -> None:
    setup.etcd(**setup.etcds.login(user=DAEMON, password_file=str(setup.folder / "nowhere")))


@breaks("etcd-no-login")
def _(setup: Setup) -> None:
    setup.etcd(**setup.etcds.login())


@breaks("etcd-without-users")
def _(setup: Setup) -> None:
    setup.etcd(endpoints=[setup.etcds.plain], user=DAEMON, password_file=setup.write("password", PHRASE))


@breaks("etcd-user-without-role")
def _(setup: Setup) -> None:
    setup.etcd(**setup.etcds.login(user="weak", password_file=setup.write("password", "weak")))


@breaks("etcd-full")
def _(setup: Setup) -> None:
    setup.etcd(endpoints=[setup.etcds.plain])
    with closing(Etcd([setup.etcds.plain])) as etcd:
        etcd.call("/v3/maintenance/alarm", {"action": "ACTIVATE", "alarm": "NOSPACE"})
    setup.stack.callback(_disarm, setup.etcds.plain)


def _disarm(endpoint: str) -> None:
    with closing(Etcd([endpoint])) as etcd:
        for alarm in etcd.call("/v3/maintenance/alarm", {"action": "GET"})["alarms"]:
            etcd.call("/v3/maintenance/alarm", {"action": "DEACTIVATE", **alarm})


# -- Slack, secrets and checkpoints ------------------------------------------------------------------------------


@breaks("slack-not-a-url")
def _(setup: Setup) -> None:
    os.environ["SPOTSUP_SLACK_WEBHOOK"] = "#training"


@breaks("slack-no-file")
def _(setup: Setup) -> None:
    setup.config["slack"] = {"webhook_file": str(setup.folder / "nowhere")}


@breaks("slack-gone")
def _(setup: Setup) -> None:
    os.environ["SPOTSUP_SLACK_WEBHOOK"] = _page(setup, 404)


@breaks("slack-unreachable")
def _(setup: Setup) -> None:
    os.environ["SPOTSUP_SLACK_WEBHOOK"] = f"http://127.0.0.1:{closed_port(setup)}"


@breaks("secrets-readable")
def _(setup: Setup) -> None:
    setup.config["slack"] = {"webhook_file": setup.write("slack-webhook", _page(setup), 0o644)}


@breaks("environment-readable")
def _(setup: Setup) -> None:
    setup.write("environment", "AWS_SECRET_ACCESS_KEY=x\n", 0o644)


def _bucket(setup: Setup, place: str = "") -> Any:
    server = setup.stack.enter_context(s3_here())
    job = {"name": "first", "nodes": {"min": 1, "desired": 1, "max": 1}, "run": "first.py"}
    text = json.dumps({**job, "checkpoints": place or f"s3://{server.bucket}/jobs"})
    setup.arguments = ["--job", setup.write("job.yaml", text)]
    setup.values["bucket"] = server.bucket
    return server


@breaks("bucket-missing")
def _(setup: Setup) -> None:
    _bucket(setup, "s3://no-such-bucket-here/jobs")


@breaks("bucket-denied")
def _(setup: Setup) -> None:
    _bucket(setup).fault = lambda _: Fault(error=DENIED)


@breaks("bucket-read-only")
def _(setup: Setup) -> None:
    _bucket(setup).fault = lambda request: Fault(error=DENIED) if "delete" in request.query else None


@breaks("bucket-clock")
def _(setup: Setup) -> None:
    # aws-sdk-php#612
    text = "The difference between the request time and the current time is too large."
    _bucket(setup).fault = lambda _: Fault(error=("403 Forbidden", "RequestTimeTooSkewed", text))


@breaks("bucket-region")
def _(setup: Setup) -> None:
    moved = "301 Moved Permanently", "PermanentRedirect", "Use the endpoint of the bucket."
    _bucket(setup).fault = lambda _: Fault(error=moved)


# -- packages --------------------------------------------------------------------------------------------------


@breaks("package-shadowed")
def _(setup: Setup) -> None:
    with zipfile.ZipFile(other_wheel(setup.folder, "supervisor")) as archive:
        archive.extractall(setup.folder / "other")
    setup.said = refusal_of(Path(sys.executable).parent / "spotsupd", PYTHONPATH=str(setup.folder / "other"))


@breaks("python-too-old")
def _(setup: Setup) -> None:
    python = interpreter("3.9")
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import spotsup_entry; spotsup_entry.spotsupd()"
    setup.values["old"] = str(python)
    setup.said = refusal_of(python, "-c", code)


# -- the test --------------------------------------------------------------------------------------------------


def said_by(setup: Setup, program: str) -> list[tuple[str, str]]:
    """(check, sentence) of all that is wrong; the check is "" where the program ended before any."""
    if setup.said:
        return [("", setup.said.partition(": ")[2])]
    if setup.text != "-":
        setup.file.write_text(setup.text or toml(setup.config))
    command = program.split()[1]
    arguments = [command, "--config", str(setup.file), *(["--embedded-etcd"] if setup.embedded else [])]
    more = ["--timeout", str(CHECK_TIMEOUT_S), "-o", "json", *setup.arguments]
    arguments += more if command == "check" else []
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    if done.stderr:
        assert (done.exit_code in {1, 2}, done.stdout) == (True, "")
        (line,) = done.stderr.splitlines()
        return [("", line.removeprefix("spotsupd: "))]
    report = json.loads(done.stdout)
    assert done.exit_code == (0 if report["ok"] else 1)
    return [(f"{each['subject']}, {each['check']}", each["message"]) for each in report["findings"] if not each["ok"]]


def pattern_of(says: str, values: Mapping[str, str]) -> str:
    """A regular expression: `{name}` stands for a value, `…` for any text without a line break."""
    parts = re.split(r"(…|\{\w+\})", says)
    return "".join(
        ".+" if part == "…" else re.escape(values[part[1:-1]] if part[:1] == "{" else part) for part in parts
    )


# An SDK's answers take seconds.
PARAMETERS = [pytest.param(row, id=row.id, marks=[pytest.mark.long] if row.group == CLOUDS else []) for row in ROWS]


@pytest.mark.parametrize("row", PARAMETERS)
def test_a_broken_setup_is_named_by_one_sentence_that_says_what_to_do(row: BrokenSetup, setup: Setup) -> None:
    BREAKS[row.id](setup)
    found = said_by(setup, row.program)
    assert {check for check, _ in found} == {row.check, *row.also}, found
    message = next(message for check, message in found if check == row.check)
    assert re.fullmatch(pattern_of(row.says, setup.values), message), message
    assert len(message) < 700


@pytest.mark.parametrize("cloud", ["", *(pytest.param(each, marks=pytest.mark.long) for each in (AWS, GCP, AZURE))])
def test_what_the_rows_break_passes_all_checks_before(cloud: str, setup: Setup) -> None:
    """So each sentence is of what its row breaks."""
    setup.key()
    if cloud:
        setup.cloud(cloud)
    setup.etcd(
        **setup.etcds.login(user=DAEMON, password_file=setup.write("password", PHRASE)),
    )
    _bucket(setup)
    os.environ["SPOTSUP_SLACK_WEBHOOK"] = _page(setup, 400)
    setup.write("environment", "", 0o640)
    assert said_by(setup, "spotsupd check") == []


@pytest.mark.parametrize("why", ["no credentials", "no obstore", "no address"])
def test_where_this_computer_cannot_try_a_bucket_only_the_nodes_role_decides(why: str, setup: Setup) -> None:
    server = _bucket(setup, "none" if why == "no address" else "s3://a-bucket/jobs")
    if why == "no obstore":
        setup.monkeypatch.setitem(sys.modules, "obstore", None)
    for name in server.environ:
        del os.environ[name]
    os.environ["AWS_REGION"] = "us-east-1"
    os.environ["AWS_METADATA_ENDPOINT"] = f"http://127.0.0.1:{closed_port(setup)}"
    setup.file.write_text(toml(setup.config))
    arguments = ["check", "--config", str(setup.file), "--embedded-etcd", *setup.arguments]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    (line,) = [line for line in done.stdout.splitlines() if " job, checkpoints: " in line]
    decides = "only the nodes' role decides; each node tries it before it trains"
    missing = "obstore is not installed here: pip install obstore"
    says = {
        "no credentials": f"s3://a-bucket/jobs was not tried, for this computer has no credentials for it: {decides}",
        "no obstore": f"s3://a-bucket/jobs was not tried ({missing}): {decides}",
        "no address": "job first keeps its checkpoints in no object store: there is nothing to try from here",
    }
    assert line == f"ok      job, checkpoints: {says[why]}"
    assert not server.requests[1:], "after the making of its bucket"


def test_every_row_is_broken_by_this_file_and_there_are_forty() -> None:
    assert {row.id for row in ROWS} == BREAKS.keys()
    assert len(ROWS) >= 40
