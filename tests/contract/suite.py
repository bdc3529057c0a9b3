"""The contract suite on an account: `make contract-real SUITE=1`. Tests that need the cloud to fail are skipped."""

from __future__ import annotations

import argparse
import os
import secrets
from collections.abc import Callable

import pytest

from provisioners.base import Offer, OfferQuery, Provisioner, ProvisionerError
from provisioners.catalog import load_catalog
from provisioners.settings import CloudSettings
from tests.contract.errors import UnusableError
from tests.contract.metered import TEST_LIMIT_S, Ledger, Run
from tests.contract.real_harness import RealHarnesses
from tests.contract.sweeping import end_all, note, running
from tools.stack import ROOT

SUITE = tuple(f"tests/contract/test_{name}.py" for name in ("provisioner_contract", "provisioner_faults", "ownership"))
CHECK_S = 60.0


def run_suite(
    settings: CloudSettings, provisioner: Provisioner, options: argparse.Namespace, over: Callable[[], None]
) -> int:
    """pytest's exit code; 1 where something is left. `over`: from now on nothing is left to interrupt. Raises
    UnusableError."""
    os.environ["SPOTSUP_CONTRACT_REAL"] = "1"
    try:
        cheapest = provisioner.offers(OfferQuery(), CHECK_S)[0]
        catalog = load_catalog(settings.catalog)
    except (ProvisionerError, IndexError) as error:
        raise UnusableError(f"{options.cloud} offers nothing: {error}") from error
    name = f"contract-{secrets.token_hex(4)}"
    options.folder.mkdir(parents=True, exist_ok=True)

    def price(offer: Offer) -> float | None:
        """Where the spot price is nowhere to be had, the one on demand: it is never less."""
        listed = catalog.price(options.cloud, offer.region, offer.instance_type)
        return offer.usd_per_hour if offer.usd_per_hour is not None else (listed[0] if listed else None)

    ledger, noted = Ledger(options.budget_usd), options.folder / f"{name}.json"
    run = Run(name, provisioner, ledger, noted, price, settings.dead_man_s)
    print(
        f"{options.cloud}, budget ${options.budget_usd:.2f}, machines such as {cheapest.instance_type} in "
        f"{cheapest.zone}, tags {name}-…; if this is killed: make contract-real CLOUD={options.cloud} "
        f"CONFIG={options.config} SWEEP={name}",
        flush=True,
    )
    arguments = ["-v", "-p", "no:xdist", "-p", "no:cacheprovider", "--timeout", f"{TEST_LIMIT_S:g}"]
    with running(options.folder, name):
        try:
            suite = [str(ROOT / each) for each in SUITE]
            code = int(pytest.main([*arguments, *suite, *options.pytest], [RealHarnesses(run, cheapest.zone)]))
        except KeyboardInterrupt:
            code = int(pytest.ExitCode.INTERRUPTED)
        finally:
            over()
            left = end_all(provisioner, run.owners, options.quiet_s)
        if run.owners and not left:
            note(options.folder, name, provisioner.name, run.owners, swept=True)
    launched = sum(each.exists for each in run.ledger.bills.values())
    print(f"{launched} machines; at most ${run.ledger.spent_usd:.2f} of ${options.budget_usd:.2f} spent")
    return code or int(bool(left))
