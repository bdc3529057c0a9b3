"""spotsup against an account that somebody pays for.

    make contract-real CLOUD=aws BUDGET_USD=1 CONFIG=spotsupd.toml

A job on two of the smallest CPU spot machines, with a daemon and an etcd of its own; one node is taken from it, and all
that was made is ended, also after Ctrl-C. build/contract-real/CLOUD.md says which of the numbered assumptions of
docs/clouds.md held. What it may cost is estimated before, from known prices; what could exceed BUDGET_USD is not begun.
SUITE=1 runs the contract suite instead. SWEEP=all ends what killed runs have left, SWEEP=contract-… one of them.
Credentials are found as the daemon finds them; the rest is in the daemon's configuration.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from spotsup_trainer.objects.url import checked

from tests.contract.errors import UnusableError

if TYPE_CHECKING:
    from provisioners.base import Provisioner
    from supervisor.config import Config

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "contract-real"
CHECK_S = 60.0
ALL = "all"
# The patience of tests/support/machines.py; what the user has set is kept.
PATIENCE = {
    "SPOTSUP_TEST_CALL_S": "60",
    "SPOTSUP_TEST_PATIENCE_S": "600",
    "SPOTSUP_TEST_LOGIN_S": "300",
    "SPOTSUP_TEST_LOOK_S": "3",
}


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
    """0: what could be tried held. 1: something did not, or was left. 2: wrong usage, or interrupted."""
    options = _options(arguments)
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    interrupt = Interrupt()
    try:
        config, provisioner = _open(options.cloud, options.config)
        if options.sweep:
            from tests.contract.sweeping import sweep_by_name

            interrupt.over()
            return sweep_by_name(provisioner, options.folder, options.sweep, options.quiet_s)
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
    parser.add_argument(
        "--sweep", default="", nargs="?", const=ALL, metavar="SWEEP", help="only end what this run, or all, have left"
    )
    parser.add_argument(
        "--fis-role", default="", metavar="FIS_ROLE", help="EC2: the ARN of a role that may interrupt spot instances"
    )
    parser.add_argument("--checkpoints", default="", metavar="CHECKPOINTS", help="s3://…, gs://… or abfs://…")
    parser.add_argument("--suite", action="store_true", help="the contract suite, and no job")
    parser.add_argument("--quiet-s", type=float, default=60.0, help="how long a sweep has to find nothing")
    parser.add_argument("--test-cloud", action="store_true", help="its machines come and go at once: wait less long")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where reports are, and what a run has used")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    options = parser.parse_args(arguments)
    if options.cloud not in {"aws", "gcp", "azure"}:
        parser.error("CLOUD=aws, gcp or azure is needed")
    if not options.config:
        parser.error("CONFIG=spotsupd.toml is needed: a configuration with a section for the cloud")
    if options.checkpoints:
        try:
            options.checkpoints = checked(options.checkpoints)
        except ValueError as error:
            parser.error(f"CHECKPOINTS: {error}")
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
    from provisioners.settings import CloudSettings

    settings = config.cloud(options.cloud)
    assert isinstance(settings, CloudSettings)
    os.environ.setdefault("SPOTSUP_TEST_SSH_USER", settings.ssh_user)
    found = [each for each in provisioner.check(CHECK_S) if not each.ok]
    # A new account has none of GPUs, and the job needs none: what it lacks, its launches say.
    quotas = [] if options.suite else [each for each in found if each.what.endswith(" quota")]
    for each in quotas:
        print(f"this job may not need it: {each.message}", flush=True)
    if wrong := [each.message for each in found if each not in quotas]:
        raise UnusableError(f"{options.cloud} is not ready: {'; '.join(wrong)}")
    if options.suite:
        from tests.contract.suite import run_suite

        return run_suite(settings, provisioner, options, interrupt.over)
    from tests.contract.account import run_account

    return run_account(config, provisioner, options, interrupt.over)


if __name__ == "__main__":
    sys.exit(main())
