"""The contract suite against an account that somebody pays for.

    make contract-real CLOUD=aws BUDGET_USD=1 CONFIG=spotsupd.toml

Credentials are found as the daemon finds them, the rest is in the daemon's configuration. Machines are the cheapest
that the cloud offers. Each launch first reserves its price for 20 minutes; a test whose launch could exceed the budget
fails, and so do those after it. All carries the tags of this run, and all that does is ended at the end, also after
Ctrl-C. `SWEEP=contract-…` instead of BUDGET_USD does that alone, for a run that was killed.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from provisioners.base import Offer, Owner, Provisioner
    from supervisor.config import Config

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "contract-real"
SUITE = tuple(f"tests/contract/test_{name}.py" for name in ("provisioner_contract", "provisioner_faults", "ownership"))
CHECK_S = 60.0
SWEEP_S = 900.0
# The patience of tests/support/machines.py; what the user has set is kept.
PATIENCE = {
    "SPOTSUP_TEST_CALL_S": "60",
    "SPOTSUP_TEST_PATIENCE_S": "600",
    "SPOTSUP_TEST_LOGIN_S": "300",
    "SPOTSUP_TEST_LOOK_S": "3",
}


class UnusableError(Exception):
    """The run cannot begin: one sentence."""


class Interrupt:
    """The first Ctrl-C (or SIGTERM) ends the tests; further ones must not end the sweep."""

    def __init__(self) -> None:
        self._seen = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def over(self) -> None:
        """From now on there is nothing left to interrupt."""
        self._seen = True

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._seen:
            # Not print(): this may run within one, and a stream is not reentrant.
            os.write(2, b"ending everything; killing this process now leaves machines that cost money\n")
            return
        self._seen = True
        raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """0: what could be tested held. 1: something did not, or was left. 2: wrong usage, or interrupted."""
    options = _options(arguments)
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    interrupt = Interrupt()
    try:
        config, provisioner = _open(options.cloud, options.config)
        if options.sweep:
            interrupt.over()
            return _sweep(provisioner, _owners_of(options, provisioner), options.quiet_s)
        return _run(config, provisioner, options, interrupt)
    except UnusableError as error:
        print(f"contract-real: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("contract-real: interrupted before anything was launched", file=sys.stderr)
    return 2


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make contract-real", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cloud", default="", metavar="CLOUD", help="aws, gcp or azure")
    parser.add_argument("--config", default="", metavar="CONFIG", help="the daemon's TOML file")
    parser.add_argument("--budget-usd", default="", metavar="BUDGET_USD", help="what it may cost, in US dollars")
    parser.add_argument("--sweep", default="", metavar="SWEEP", help="only end what a run of this name left")
    parser.add_argument("--quiet-s", type=float, default=60.0, help="how long a sweep has to find nothing")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where it is noted what a run has used")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    options = parser.parse_args(arguments)
    if options.cloud not in {"aws", "gcp", "azure"}:
        parser.error("CLOUD=aws, gcp or azure is needed")
    if not options.config:
        parser.error("CONFIG=spotsupd.toml is needed: a configuration with a section for the cloud")
    if not options.sweep:
        try:
            options.budget_usd = float(options.budget_usd)
        except ValueError:
            parser.error("BUDGET_USD=1 is needed: what this may cost, in US dollars")
        if not 0 < options.budget_usd <= 1000:
            parser.error(f"BUDGET_USD is {options.budget_usd:g}; it can be more than 0, up to 1000")
    return options


def _open(cloud: str, config_path: str) -> tuple[Config, Provisioner]:
    from provisioners.base import ProvisionerError
    from supervisor.clouds import open_cloud
    from supervisor.config import load_config
    from supervisor.errors import SpotsupError

    try:
        config = load_config(Path(config_path))
        return config, open_cloud(config, cloud)
    except (SpotsupError, ProvisionerError) as error:
        raise UnusableError(str(error)) from error


def _run(config: Config, provisioner: Provisioner, options: argparse.Namespace, interrupt: Interrupt) -> int:
    import pytest

    from provisioners.base import OfferQuery, ProvisionerError
    from provisioners.catalog import load_catalog
    from provisioners.settings import CloudSettings
    from tests.contract.metered import TEST_LIMIT_S, Ledger, Run
    from tests.contract.real_harness import RealHarnesses

    settings = config.cloud(options.cloud)
    assert isinstance(settings, CloudSettings)
    os.environ.setdefault("SPOTSUP_TEST_SSH_USER", settings.ssh_user)
    os.environ["SPOTSUP_CONTRACT_REAL"] = "1"
    wrong = [each.message for each in provisioner.check(CHECK_S) if not each.ok]
    if wrong:
        raise UnusableError(f"{options.cloud} is not ready: {'; '.join(wrong)}")
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
    try:
        suite = [str(ROOT / each) for each in SUITE]
        code = int(pytest.main([*arguments, *suite, *options.pytest], [RealHarnesses(run, cheapest.zone)]))
    except KeyboardInterrupt:
        code = int(pytest.ExitCode.INTERRUPTED)
    finally:
        interrupt.over()
        left = _sweep(provisioner, run.owners, options.quiet_s)
    launched = sum(each.exists for each in run.ledger.bills.values())
    print(f"{launched} machines; at most ${run.ledger.spent_usd:.2f} of ${options.budget_usd:.2f} spent")
    return code or left


def _sweep(provisioner: Provisioner, owners: Sequence[Owner], quiet_s: float) -> int:
    from tests.contract.metered import sweep

    if not owners:
        print("nothing was launched")
        return 0
    print(f"ending what carries the tags of {len(owners)} owners of this run", flush=True)
    left = sweep(provisioner, owners, quiet_s=quiet_s, timeout_s=SWEEP_S)
    if left:
        print(f"LEFT, and may cost money: {'; '.join(left)}", file=sys.stderr)
        return 1
    print("nothing is left")
    return 0


def _owners_of(options: argparse.Namespace, provisioner: Provisioner) -> list[Owner]:
    from provisioners.base import Owner

    name, folder = options.sweep, options.folder
    try:
        record = json.loads((folder / f"{name}.json").read_text())
    except OSError as error:
        known = ", ".join(sorted(each.stem for each in folder.glob("*.json"))) or "none"
        raise UnusableError(f"no run {name!r} is known here; known: {known}") from error
    if record["cloud"] != provisioner.name:
        raise UnusableError(f"{name} was a run on {record['cloud']}")
    return [Owner(**each) for each in record["owners"]]


if __name__ == "__main__":
    sys.exit(main())
