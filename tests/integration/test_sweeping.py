"""What `make contract-real SWEEP=…` ends: by what is noted here, and by tags; never what may be somebody else's run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from provisioners.base import Launched, Owner, Provisioner
from tests.clouds.base import CloudServer, wire_cloud
from tests.contract.errors import UnusableError
from tests.contract.sweeping import ALL, MAX_RUN_S, note, running, sweep_by_name
from tests.support.machines import TIMEOUT_S, request_for

pytestmark = pytest.mark.nightly

HERE, THERE = Owner("contract-0123abcd", "1111111111111111"), Owner("contract-99999999-probe", "2222222222222222")
OTHERS = Owner("training", "3333333333333333")


@dataclass(frozen=True, slots=True)
class Account:
    """An account with a machine of this computer's run, one of another computer's, and one of an installation."""

    server: CloudServer
    provisioner: Provisioner
    folder: Path

    def sweep(self, name: str, after_s: float = 0.0) -> int:
        return sweep_by_name(self.provisioner, self.folder, name, 0.0, lambda: time.time() + after_s)

    def clusters(self) -> list[str]:
        """Whose machines cost money."""
        with self.server.cloud.fleet.lock:
            return sorted(each.tags["spotsup-cluster"] for each in self.server.cloud.fleet.alive())


@pytest.fixture(params=["aws", "gcp", "azure"])
def account(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Account]:
    with wire_cloud(request.param) as server:
        found = Account(server, server.provisioner(), tmp_path)
        note(tmp_path, HERE.cluster, request.param, (HERE,))
        for number, owner in enumerate((HERE, THERE, OTHERS)):
            asked = replace(request_for(found.provisioner, f"n-{number}"), owner=owner)
            assert isinstance(found.provisioner.launch(asked, TIMEOUT_S), Launched)
        yield found


def test_all_are_those_of_this_computer_and_those_that_no_run_can_be(
    account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    assert account.sweep(ALL) == 0
    assert account.clusters() == [THERE.cluster, OTHERS.cluster]
    assert (
        "contract-99999999 is of another computer and may still run; to end it nevertheless: SWEEP=contract-99999999"
        in (capsys.readouterr().out)
    )
    assert account.sweep(ALL, after_s=MAX_RUN_S + 60.0) == 0
    assert account.clusters() == [OTHERS.cluster]
    assert account.sweep(ALL, after_s=MAX_RUN_S + 60.0) == 0
    assert "nothing was launched" in capsys.readouterr().out


def test_one_that_is_named_is_ended_without_a_note(account: Account) -> None:
    assert account.sweep("contract-99999999") == 0
    assert account.clusters() == [HERE.cluster, OTHERS.cluster]
    with pytest.raises(UnusableError, match="no run 'training' is known here, and no machine carries its tags"):
        account.sweep("training")
    assert account.clusters() == [HERE.cluster, OTHERS.cluster]


def test_a_run_that_goes_on_is_left_alone(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    with running(account.folder, HERE.cluster):
        assert account.sweep(ALL) == 1
        assert account.sweep(HERE.cluster) == 1
    assert "still runs on this computer" in capsys.readouterr().err
    assert account.clusters() == [HERE.cluster, THERE.cluster, OTHERS.cluster]
