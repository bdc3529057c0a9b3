"""The steps of a rotation of etcd's CA: their order, who has to be ready, and crashes between two files."""

from __future__ import annotations

import datetime as dt
import ssl
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from cryptography import x509
from spotsup_trainer.etcd.gateway import Gateway, Tls
from spotsup_trainer.wire import AgentStatus

from supervisor.errors import CommandRefusedError
from supervisor.journal.ca_rotation import Phase, begin, finish, lacking, rotation_of, sign
from supervisor.journal.certificates import TlsFiles, certificates_in, ensure_certificates, is_signed_by
from supervisor.journal.etcd_trust import ca_ending
from supervisor.journal.reading import Reading
from supervisor.model import NodeState
from supervisor.planner.world import JobView
from tests.support.secured_etcd import a_job, a_node

NOW = dt.datetime(2026, 11, 23, tzinfo=dt.UTC)
JOB = a_job()


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    made = TlsFiles(tmp_path / "tls")
    ensure_certificates(made, ("etcd.example",), NOW)
    return made


def shown(files: TlsFiles) -> x509.Certificate:
    (found,) = certificates_in(files.cert)
    return found


def test_the_steps_in_their_order_each_repeated(files: TlsFiles) -> None:
    (old,) = certificates_in(files.ca)
    with pytest.raises(CommandRefusedError, match="`begin` first"):
        sign(files, NOW)
    assert finish(files) == ""
    assert "made a CA that is valid until 2036" in begin(files, NOW)
    assert begin(files, NOW) == ""
    _, new = certificates_in(files.ca)
    assert rotation_of(files).phase is Phase.BEGUN
    assert ensure_certificates(files, (), NOW) == ""  # the timer changes nothing meanwhile
    with pytest.raises(CommandRefusedError, match="`sign` first"):
        finish(files)
    key = files.key.read_bytes()
    assert "etcd.example" in sign(files, NOW)
    assert sign(files, NOW) == ""
    assert is_signed_by(shown(files), new)
    assert not is_signed_by(shown(files), old)
    assert files.key.read_bytes() == key
    with pytest.raises(CommandRefusedError, match="`finish` it first"):
        begin(files, NOW)
    assert "the new CA only" in finish(files)
    assert certificates_in(files.ca) == [new]
    assert (finish(files), ensure_certificates(files, (), NOW)) == ("", "")
    assert sorted(each.name for each in files.folder.iterdir()) == ["ca.crt", "ca.key", "etcd.crt", "etcd.key"]
    assert begin(files, NOW)  # and the next one


def test_a_crash_between_two_files_is_gone_when_the_step_is_repeated(files: TlsFiles) -> None:
    before = files.ca.read_bytes()
    begin(files, NOW)
    both, new = files.ca.read_bytes(), rotation_of(files).new
    files.ca.write_bytes(before)  # all but the last file of `begin`
    assert rotation_of(files).phase is Phase.SETTLED
    begin(files, NOW)
    assert files.ca.read_bytes() == both
    files.next_ca_key.replace(files.ca_key)  # the first of `sign`
    assert rotation_of(files).phase is Phase.SIGNED
    sign(files, NOW)
    assert is_signed_by(shown(files), new)
    assert not files.next_ca.exists()


def test_who_does_not_trust_the_new_ca_is_named() -> None:
    states = [NodeState.MEMBER, NodeState.READY, NodeState.BOOTSTRAPPING, NodeState.BOOTING, NodeState.GONE]
    nodes = {f"n{number}": replace(a_node(JOB, state=each), id=f"n{number}") for number, each in enumerate(states)}
    agents = {name: AgentStatus(name, "boot", 1, 1.0, "1", cas) for name, cas in (("n0", ("a", "b")), ("n1", ("a",)))}
    view = JobView(JOB, 1, MappingProxyType(nodes), MappingProxyType({}), agents=agents)
    reading = Reading(MappingProxyType({JOB.name: view}), (), 1, live=True, unreadable={}, refused={"odd": "why"})
    found = lacking(reading, {"host:1": ["a", "b"], "host:2": ["a"]}, "b")
    assert [each.partition(":")[0] for each in found[1:]] == ["job odd", "node n1", "node n2"]
    assert found[0].startswith("daemon host:2: copy ca.crt")
    assert lacking(replace(reading, refused={}), {}, "a")[0].startswith("node n2: its agent is silent")


def test_the_end_of_a_ca_is_named_a_year_before(files: TlsFiles) -> None:
    assert ca_ending(files.ca, NOW + dt.timedelta(days=3650 - 370)) == []
    (found,) = ca_ending(files.ca, NOW + dt.timedelta(days=3650 - 360))
    assert "ends on 2036-11-20: replace it while jobs run" in found.sentence
    begin(files, NOW + dt.timedelta(days=3650 - 360))
    assert ca_ending(files.ca, NOW + dt.timedelta(days=3650 - 360)) == []


def test_a_file_that_is_no_ca_leaves_the_one_before_and_none_is_not_the_systems(files: TlsFiles) -> None:
    gateway = Gateway(["https://127.0.0.1:1"], tls=Tls(str(files.ca)))
    trust = gateway._trust
    assert trust is not None
    first = trust.context()
    files.ca.write_text("nonsense")
    assert trust.context() is first
    files.ca.unlink()
    assert trust.context() is first
    files.ca.write_text("")
    assert trust.context() is first
    with pytest.raises(ssl.SSLError, match="no certificate in"):
        Gateway(["https://127.0.0.1:1"], tls=Tls(str(files.ca)))
