"""The numbered assumptions of docs/clouds.md, and what a run on an account says of each."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from provisioners.base import EndCause, Instance, InstanceState, Market, Offer, Owner
from supervisor.config import parse_config
from supervisor.endpoints import refusal
from tests.contract import assumptions
from tests.contract.evidence import Evidence, Listing, Seen, Step
from tests.contract.job import daemon_config
from tests.contract.spending import DEAD_MAN_S, JOB_S, TYPES, UnknownCostError, estimate
from tests.contract.verdicts import JUDGES, Verdict, judge
from tools.stack import ROOT

ROWS = assumptions.read()
NUMBERS = {each.number: each.text for each in ROWS}


def test_numbers_are_unique_and_in_order() -> None:
    assert len(ROWS) >= 30
    assert len(NUMBERS) == len(ROWS)
    by_letter = [(number[0], int(number[1:])) for number in NUMBERS]
    assert by_letter == sorted(by_letter)
    # and no row is one that cannot be read
    lines = [line for line in assumptions.DOCUMENT.read_text().splitlines() if re.match(r"\| [AEGZ]\d+ \|", line)]
    assert len(lines) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.number)
def test_each_has_its_place_in_the_code_and_a_test_that_exists(row: assumptions.Assumption) -> None:
    assert row.files
    for file in row.files:
        assert (ROOT / file).is_file(), file
    path, _, name = row.test.partition("::")
    functions = {
        each.name for each in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(each, ast.FunctionDef)
    }
    assert name in functions, row.test
    assert row.tried == (row.number in JUDGES)


def test_every_judge_is_of_a_number() -> None:
    assert set(JUDGES) <= set(NUMBERS)


# -- verdicts ------------------------------------------------------------------------------------------------

PROBE = Owner("contract-0-probe", "0123456789abcdef")
MACHINE = Instance(
    id="r:i-1",
    owner=PROBE,
    node="n",
    token="t",  # noqa: S106 - no secret
    region="r",
    zone="r-a",
    instance_type="small",
    state=InstanceState.PENDING,
    launched_at=99.0,
)
RUNNING = replace(MACHINE, state=InstanceState.RUNNING, ssh_host="127.0.0.1")
ENDED = replace(MACHINE, state=InstanceState.TERMINATED, end_cause=EndCause.USER, end_message="by user")


def listing(at: float, *machines: Instance) -> Listing:
    return Listing(PROBE.cluster, at, machines)


SEEN = (
    Seen(Step.LAUNCH, 100.0, 1.0, "machine r:i-1", machine="r:i-1"),
    Seen(Step.LAUNCH_AGAIN, 101.0, 1.0, "machine r:i-1", machine="r:i-1"),
    Seen(Step.FIND, 120.0, 1.0, "machine r:i-1", machine="r:i-1"),
    Seen(Step.LOGIN, 130.0, 9.0, "logged in"),
    Seen(Step.CONSOLE, 140.0, 9.0, "80 characters"),
    Seen(Step.TERMINATE, 150.0, 1.0, "accepted", machine="r:i-1"),
    Seen(Step.TERMINATE_AGAIN, 151.0, 1.0, "accepted", machine="r:i-1"),
    Seen(Step.LEFTOVERS, 170.0, 1.0, "nothing left"),
    Seen(Step.LAUNCH_AFTER_END, 180.0, 1.0, "machine r:i-1, terminated", machine="r:i-1"),
)
LISTINGS = (listing(102.0, MACHINE), listing(110.0, RUNNING), listing(160.0, ENDED))


def verdicts(
    seen: Sequence[Seen] = SEEN, listings: Sequence[Listing] = LISTINGS, cloud: str = "aws"
) -> dict[str, Verdict]:
    found = judge(
        Evidence(cloud, PROBE.cluster, "contract-0", 120.0, seen=tuple(seen), listings=tuple(listings)), NUMBERS
    )
    return {number: each.verdict for number, each in found.items()}


def failed(**given: Sequence[Seen] | Sequence[Listing]) -> set[str]:
    return {number for number, each in verdicts(**given).items() if each is Verdict.FAILED}  # type: ignore[arg-type]


def changed(step: Step, **given: object) -> list[Seen]:
    return [replace(each, **given) if each.step is step else each for each in SEEN]  # type: ignore[arg-type]


def test_a_probe_as_it_should_be_holds_and_what_did_not_come_is_not_seen() -> None:
    found = verdicts()
    held = {number for number, each in found.items() if each is Verdict.HELD}
    assert held == {f"A{number}" for number in range(1, 16)} | {"E1"}
    assert set(found.values()) == {Verdict.HELD, Verdict.NOT_SEEN}
    assert set(verdicts((), ()).values()) == {Verdict.NOT_SEEN}
    assert {number[0] for number in verdicts((), (), cloud="gcp")} == {"A", "G"}


def test_what_does_not_hold_is_said_of_its_number_alone() -> None:
    other = replace(MACHINE, id="r:i-2")
    assert failed(seen=changed(Step.LAUNCH_AGAIN, machine="r:i-2")) == {"A1"}
    assert failed(listings=(LISTINGS[0], listing(110.0, RUNNING, other), LISTINGS[2])) == {"A1"}
    assert failed(seen=changed(Step.LAUNCH_AFTER_END, machine="r:i-2")) == {"A2"}
    assert failed(listings=(*LISTINGS, listing(190.0, RUNNING))) == {"A2"}  # Google and Azure give the name again
    assert failed(listings=(listing(500.0, ENDED),)) >= {"A3"}
    assert failed(listings=(listing(102.0, replace(MACHINE, token="")), *LISTINGS[1:])) == {"A4"}
    assert failed(listings=(LISTINGS[0], listing(105.0), *LISTINGS[1:])) == {"A5"}
    assert failed(seen=changed(Step.FIND, machine="", ok=False)) == {"A6"}
    assert failed(listings=(LISTINGS[0], listing(110.0, replace(RUNNING, ssh_host="")), LISTINGS[2])) == {"A7"}
    assert failed(seen=changed(Step.LOGIN, ok=False)) == {"A8"}
    assert failed(
        listings=[listing(each.at, *(replace(m, launched_at=5000.0) for m in each.machines)) for each in LISTINGS]
    ) == {"A10"}
    assert failed(listings=LISTINGS[:2]) == {"A11", "A13", "E1"}
    assert failed(seen=changed(Step.TERMINATE_AGAIN, ok=False)) == {"A12"}
    preempted = replace(ENDED, end_cause=EndCause.PREEMPTED)
    assert failed(listings=(*LISTINGS[:2], listing(160.0, preempted))) == {"A13"}
    assert failed(seen=changed(Step.LEFTOVERS, ok=False)) == {"A14"}
    assert failed(seen=changed(Step.LAUNCH_AGAIN, machine="", answer="Transient (unknown code X): y")) == {"A15"}
    assert failed(
        listings=(*LISTINGS[:2], listing(160.0, replace(ENDED, end_message="", end_cause=EndCause.UNKNOWN)))
    ) == {
        "A13",
        "E1",
    }


FORCED = Seen(Step.FORCE, 300.0, 1.0, "instances.simulateMaintenanceEvent", machine="r:j-1")
TAKEN = replace(RUNNING, id="r:j-1", owner=Owner("contract-0", PROBE.key_mark))


def of_the_job(
    *machines: tuple[float, Instance | None],
    notice_at: float | None,
    replaced_at: float,
    cloud: str = "gcp",
    source: str = "gcp",
) -> dict[str, Verdict]:
    seen = [FORCED, Seen(Step.REPLACED, replaced_at, 1.0, "round 2")]
    seen += [Seen(Step.NOTICE, notice_at, 0.0, f"will be preempted in 9 s ({source})")] if notice_at else []
    listings = tuple(Listing("contract-0", at, (each,) if each else ()) for at, each in machines)
    evidence = Evidence(cloud, PROBE.cluster, "contract-0", 30.0, preempts=True, seen=tuple(seen), listings=listings)
    return {number: each.verdict for number, each in judge(evidence, NUMBERS).items()}


def test_a_notice_that_only_the_api_gave_is_none_of_the_machine() -> None:
    told = replace(TAKEN, preempt_at=330.0)
    found = of_the_job(
        (200.0, TAKEN), (301.0, told), notice_at=301.0, replaced_at=320.0, cloud="azure", source="azure API"
    )
    assert (found["A19"], found["Z2"]) == (Verdict.NOT_SEEN, Verdict.NOT_SEEN)
    found = of_the_job((200.0, TAKEN), (301.0, told), notice_at=301.0, replaced_at=320.0, cloud="azure", source="azure")
    assert (found["A19"], found["Z2"]) == (Verdict.HELD, Verdict.HELD)
    nothing = of_the_job((200.0, TAKEN), notice_at=None, replaced_at=320.0, cloud="azure")
    assert nothing["Z2"] is Verdict.FAILED


def test_a_preemption_is_judged_by_its_notice_and_its_cause() -> None:
    ended = replace(TAKEN, state=InstanceState.TERMINATED, end_cause=EndCause.PREEMPTED)
    found = of_the_job((200.0, TAKEN), (340.0, ended), notice_at=302.0, replaced_at=400.0)
    assert {found[number] for number in ("A17", "A18", "A19", "A20", "G2")} == {Verdict.HELD}

    short = of_the_job((200.0, TAKEN), (310.0, ended), notice_at=302.0, replaced_at=400.0)
    assert (short["A19"], short["A20"]) == (Verdict.HELD, Verdict.FAILED)
    ours = of_the_job((200.0, TAKEN), (310.0, ended), notice_at=302.0, replaced_at=308.0)
    assert ours["A20"] is Verdict.NOT_SEEN  # the daemon may have ended it itself

    unannounced = of_the_job(
        (200.0, TAKEN), (310.0, replace(ended, end_cause=EndCause.UNKNOWN)), notice_at=None, replaced_at=400.0
    )
    assert (unannounced["A18"], unannounced["A19"], unannounced["A20"]) == (
        Verdict.FAILED,
        Verdict.FAILED,
        Verdict.NOT_SEEN,
    )
    nothing = of_the_job((200.0, TAKEN), notice_at=None, replaced_at=400.0)
    assert (nothing["A17"], nothing["G2"]) == (Verdict.FAILED, Verdict.FAILED)


def test_checkpoints_are_judged_where_a_bucket_was_given() -> None:
    saved, on = Seen(Step.CHECKPOINT, 290.0, 9.0, "step 20"), Seen(Step.RESUMED, 400.0, 0.0, "round 2 is at step 25")
    assert verdicts((*SEEN, saved, on))["A24"] is Verdict.HELD
    assert verdicts((*SEEN, saved, replace(on, ok=False)))["A24"] is Verdict.FAILED
    assert verdicts((*SEEN, saved))["A24"] is verdicts(SEEN)["A24"] is Verdict.NOT_SEEN


# -- money ---------------------------------------------------------------------------------------------------


def offer(name: str, usd: float | None, market: Market = Market.SPOT) -> Offer:
    return Offer("aws", "r", "r-a", name, market, usd, price_source="a list")


def test_the_estimate_is_at_the_higher_price_and_the_cheapest_type_that_way() -> None:
    cost = estimate(
        [offer("c5.large", 0.02), offer("m5.large", 0.03), offer("odd", None)],
        [offer("c5.large", 0.30, Market.ON_DEMAND), offer("m5.large", 0.10, Market.ON_DEMAND)],
        1.0,
    )
    assert cost.instance_type == "m5.large"
    assert cost.usd_per_hour == pytest.approx(0.15)
    longest_h = (JOB_S + DEAD_MAN_S) / 3600
    assert cost.job_usd == pytest.approx(3 * 0.15 * longest_h)
    assert cost.usd <= 1.0
    assert estimate([offer("m5.large", 0.03)], [], 1.0).usd_per_hour == pytest.approx(0.11)


def test_a_price_that_is_unknown_or_too_high_is_refused() -> None:
    with pytest.raises(UnknownCostError, match="no price of a small spot machine is known"):
        estimate([offer("m5.large", None)], [offer("m5.large", 0.1, Market.ON_DEMAND)], 1.0)
    with pytest.raises(UnknownCostError, match=r"may cost \$\d+\.\d\d .* and the budget is \$1\.00"):
        estimate([offer("m5.large", 1.0)], [], 1.0)


def test_small_machines_are_sold_as_spot_machines() -> None:
    assert set(TYPES) == {"aws", "gcp", "azure"}
    assert not [each for each in TYPES["azure"] if each.startswith("Standard_B")]


# -- the run's own installation ------------------------------------------------------------------------------

ACCOUNTS = {
    "aws": {"regions": ["us-east-1"]},
    "gcp": {"regions": ["us-central1"], "project": "a-project", "dead_man_s": 7200.0},
    "azure": {
        "regions": ["eastus"],
        "subscription": "11111111-2222-3333-4444-555555555555",
        "resource_group": "training",
        "dead_man_role": "/subscriptions/1/providers/Microsoft.Authorization/roleDefinitions/2",
    },
}


@pytest.mark.parametrize("cloud", ACCOUNTS)
def test_its_daemon_may_rent_machines_and_has_nothing_of_the_persons_installation(cloud: str) -> None:
    given = {
        "cluster": "mine",
        "state_dir": "/var/lib/spotsup",
        "etcd": {"endpoints": ["https://10.0.0.5:2379"], "user": "spotsupd", "password_file": "/etc/spotsup/password"},
        "slack": {"webhook_file": "/etc/spotsup/webhook"},
        "timing": {"listing_s": 7.0},
        "prices": {f"{cloud}/*/small/spot": 0.1},
        **ACCOUNTS,
    }
    config = parse_config(daemon_config(given, cloud, 1800.0), "test")
    assert refusal(config, embedded=True) == ""
    assert (config.etcd.user, config.slack.webhook_file, config.cluster) == ("", "", "default")
    assert (config.timing.listing_s, config.prices) == (7.0, {f"{cloud}/*/small/spot": 0.1})
    assert [name for name in ACCOUNTS if config.cloud(name) is not None] == [cloud]
    section = config.cloud(cloud)
    assert section is not None
    assert (section.etcd_by_ssh, section.dead_man_after_s) == (True, 1800.0)
