"""What `spotsupd init --account` makes in a cloud account, and `spotsupd destroy` deletes."""

from __future__ import annotations

import ipaddress
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli.common import ENDED, exit_on_error

if TYPE_CHECKING:
    from provisioners.account import Account, Made, Plan, Wish
    from supervisor.config import Config

MACHINES_S = 60.0  # to list an owner's machines in all regions


def account_cloud(config: Config) -> str:
    """Return the one cloud of a configuration whose account spotsup can fill. Raises UsageError."""
    from provisioners.registry import CLOUDS
    from supervisor.clouds import clouds_of
    from supervisor.errors import UsageError
    from supervisor.installation.answers import rented

    configured = [name for name in clouds_of(config) if name in rented()]
    able = [name for name, cloud in CLOUDS.items() if cloud.account]
    found = [name for name in configured if name in able]
    if len(found) == 1:
        return found[0]
    if configured and not found:
        raise UsageError(
            f"spotsup makes nothing in accounts of {', '.join(configured)} yet, only of {', '.join(able)}: "
            "docs/install.md has the commands"
        )
    raise UsageError(f"this is for a configuration with exactly one of {', '.join(able)}, and there are {len(found)}")


def open_account(config: Config, wish: Wish) -> Account:
    """Return the account of a configuration's one cloud. Raises UsageError, ProvisionerError."""
    from provisioners.registry import CLOUDS

    name = account_cloud(config)
    factory = CLOUDS[name].account
    assert factory is not None
    return factory(config.cloud(name), wish)


def ssh_sources(config: Config, given: Sequence[str], addresses: Sequence[str]) -> tuple[str, ...]:
    """Return from where daemons log in to nodes. `addresses`: their hosts' in the nodes' network. Raises UsageError."""
    from supervisor.errors import UsageError

    if given:
        return tuple(given)
    section = config.cloud(account_cloud(config))
    if getattr(section, "public_address", False):
        raise UsageError(
            "nodes have public addresses, and see the daemon come from its own: say which, or which network "
            "(--ssh-from 203.0.113.5); or give nodes private ones only (--set public_address=false)"
        )
    try:
        found = tuple(str(ipaddress.ip_address(address)) for address in addresses)
    except ValueError:
        found = ()
    if not found:
        said = ", ".join(addresses) or "nothing"
        raise UsageError(f"from which address does the daemon log in to nodes? Say --ssh-from, as {said!r} is none")
    return found


def permissions() -> dict[str, str]:
    """Return the files of docs/permissions: of a clone, or of the installed wheel. Raises StartError."""
    from supervisor.errors import StartError

    places = (
        Path(__file__).parents[2] / "docs" / "permissions",
        Path(sys.prefix) / "share" / "spotsup" / "permissions",
    )
    for folder in places:
        if folder.is_dir():
            return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    raise StartError(f"the policies are neither in {places[0]} nor in {places[1]}: install spotsup again")


def show(plan: Plan, whose: str) -> None:
    """Show what would be done, and what costs money."""
    click.echo(f"in {whose}:")
    for step in plan.steps:
        click.echo(f"would {step}")
    for cost in dict.fromkeys(step.cost for step in plan.steps if step.cost):
        click.echo(f"costs money: {cost}")


def agree(question: str, *, yes: bool, refusal: str) -> None:
    """Ask, unless that was answered. Raises UsageError where no one can be asked, CommandRefusedError for a no."""
    from supervisor.errors import CommandRefusedError, UsageError

    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Give --yes, or --dry-run to see only, or run this in a terminal")
    if not click.confirm(question, default=False):
        raise CommandRefusedError(refusal)


def make(account: Account) -> Made:
    """Make what is missing, and say each step. Raises StartError."""
    _carry_out(account.missing, account)
    return account.made()


def _carry_out(look: Callable[[], Plan], account: Account) -> Plan:
    from provisioners.account import Clock, Said, carry_out
    from provisioners.base import ProvisionerError
    from supervisor.errors import StartError

    done = []

    def say(text: str) -> None:
        done.append(text)
        click.echo(f"done: {text}")

    def wait(text: str) -> None:
        click.echo(f"waiting: {text}")

    try:
        return carry_out(look, account.take, Said(say, wait), Clock(time.monotonic, time.sleep))
    except ProvisionerError as error:
        so_far = f" ({len(done)} steps are done; repeat the command to go on)" if done else ""
        raise StartError(f"{error}{so_far}") from error


def differing(made: Mapping[str, Any], section: Mapping[str, Any]) -> list[str]:
    """Return what of it a configuration's section does not say, as `--set` takes it."""
    lines = []
    for key, value in made.items():
        have = section.get(key)
        for inner, wanted in value.items() if isinstance(value, Mapping) else ():
            found = have.get(inner) if isinstance(have, Mapping) else None
            if _plain(found) != _plain(wanted):
                lines.append(f"{key}.{inner} = {_plain(wanted)}")
        if not isinstance(value, Mapping) and _plain(value) != _plain(have):
            lines.append(f"{key} = {value}")
    return lines


def _plain(value: Any) -> Any:
    """Return lists and tuples as one kind: TOML has one."""
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def merged(section: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cloud's section with what was made: it wins, key by key."""
    result = dict(section)
    for key, value in made.items():
        before = result.get(key)
        both = isinstance(value, Mapping) and isinstance(before, Mapping)
        result[key] = {**before, **value} if both and isinstance(before, Mapping) else value
    return result


# -- destroy -----------------------------------------------------------------------------------------------


@click.command("destroy")
@click.option("--config", "path", type=click.Path(path_type=Path), help="The configuration, spotsupd.toml.")
@click.option(
    "--with-data",
    is_flag=True,
    help="Delete file systems, storage accounts and buckets, too, with all that is on them.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and do nothing.")
def destroy(path: Path | None, with_data: bool, yes: bool, dry_run: bool) -> None:
    """Delete what `init --account` made in the cloud account.

    Only once all jobs have ended and no machine of this installation is left. Deletes what carries its tags, and
    nothing else. File systems and buckets stay with their data, unless --with-data is given. May be repeated. Leaves
    this computer as it is.
    """
    with exit_on_error("spotsupd"):
        _destroy(path, with_data=with_data, yes=yes, dry_run=dry_run)


def _destroy(path: Path | None, *, with_data: bool, yes: bool, dry_run: bool) -> None:
    from provisioners.account import Wish
    from provisioners.base import ProvisionerError
    from supervisor.config import check_paths, load_config
    from supervisor.errors import StartError
    from supervisor.identity import load_identity

    config = check_paths(load_config(path))
    key = config.state / "cluster.key"
    if not key.is_file():
        raise StartError(f"there is no {key}: without the cluster's key nothing tells what in the account is its own")
    owner = load_identity(key).owner(config.cluster)
    try:
        account = open_account(config, Wish(owner))
        whose = account.whose()
        _check_ended(config, account)
        plan = account.remaining(with_data=with_data)
    except ProvisionerError as error:
        raise StartError(f"nothing was deleted: {error}") from error
    show(plan, whose)
    if plan.problems:
        raise StartError(f"nothing was deleted: {'; '.join(plan.problems)}")
    if plan.steps and not dry_run:
        agree("Delete that?", yes=yes, refusal="nothing was deleted")
        plan = _carry_out(lambda: account.remaining(with_data=with_data), account)
    for each in plan.left:
        click.echo(each)
    if not plan.steps:
        click.echo("nothing of this installation is left in the account" if not plan.left else "all else is deleted")


def _check_ended(config: Config, account: Account) -> None:
    """Raise CommandRefusedError while a job or a machine is left, ProvisionerError."""
    from spotsup.transport import Transport

    from supervisor.clouds import open_cloud
    from supervisor.errors import CommandRefusedError, DaemonUnreachableError

    daemon = Transport(config.socket)
    try:
        running = [str(job["name"]) for job in daemon.get("/v1/jobs") if job["state"] not in ENDED]
    except DaemonUnreachableError:
        running = []  # it was stopped; machines are listed in any case
    finally:
        daemon.close()
    if running:
        raise CommandRefusedError(f"jobs have not ended ({', '.join(running)}): cancel them, and repeat")
    if left := account.rented(open_cloud(config, account_cloud(config)), MACHINES_S):
        raise CommandRefusedError(
            f"this installation still has {', '.join(left)}: let the daemon run until they are gone, and repeat"
        )
