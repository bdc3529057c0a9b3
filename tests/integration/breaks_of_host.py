"""How the rows of tools/broken_setups/host.py are broken: the configuration, the state folder, etcd."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from spotsup_trainer.etcd import Etcd

from supervisor.identity import Identity
from supervisor.journal.codec import dump
from supervisor.journal.connection import state_lock
from supervisor.journal.users import open_to_everyone
from supervisor.model import ClusterRecord
from tests.support.broken_setups import KEYS, SECRET, Setup, breaks, closed_port, page
from tests.support.disks import Full, ReadOnly, memory
from tests.support.etcd_server import etcd_server
from tests.support.secured_etcd import DAEMON, PHRASE, a_job

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


@breaks("config-ssh-user")
def _(setup: Setup) -> None:
    setup.config["aws"] = {"regions": ["us-east-1"], "ssh_user": "EC2-User"}


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


@breaks("etcd-another-program")
def _(setup: Setup) -> None:
    setup.etcd(endpoints=[page(setup)])


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


@breaks("etcd-open-to-everyone")
def _(setup: Setup) -> None:
    with closing(setup.etcds.secured.client("")) as nobody:
        if not open_to_everyone(nobody):
            pytest.skip("this etcd lets nobody in")
    setup.etcd(**setup.etcds.login(user=DAEMON, password_file=setup.write("password", PHRASE)))


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
