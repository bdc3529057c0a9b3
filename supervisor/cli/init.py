"""`spotsupd init`: makes an installation on this computer, or says what it would make."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli.common import exit_on_error

if TYPE_CHECKING:
    from provisioners.account import Account
    from supervisor.config import Config
    from supervisor.installation.answers import Answers, EtcdHere, Kind
    from supervisor.installation.etcd_program import Program
    from supervisor.installation.layout import Programs
    from supervisor.installation.plan import Item, Step


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    kind: Kind
    cloud: str
    cluster: str
    regions: tuple[str, ...]
    settings: tuple[str, ...]
    address: str
    etcd_hosts: tuple[str, ...]
    state_dir: str
    # Of another host of the installation: what it printed; None where this is the first one.
    join: bytes | None
    # A release of etcd's that a person has fetched; None for the one that is there.
    etcd: Path | None
    replace: bool
    dry_run: bool
    start: bool
    # What is made in the cloud account, if anything is.
    account: bool
    ssh_from: tuple[str, ...]
    shared_storage: bool
    checkpoints: str
    yes: bool

    @property
    def answers_given(self) -> bool:
        """Whether any of them says what the configuration should be."""
        own = self.cloud or self.cluster or self.regions or self.settings
        return bool(own or self.address or self.etcd_hosts or self.state_dir)


@click.command("init")
@click.option(
    "--kind",
    type=click.Choice(["host", "personal"]),
    default=lambda: "host" if os.geteuid() == 0 else "personal",
    help="host: with systemd, a user `spotsup`, and etcd beside the daemon; needs root. personal: for you alone, with "
    "an embedded etcd.  [default: host for root, otherwise personal]",
)
@click.option("--cloud", default="", help="The cloud that is rented from, or `local` for this computer.")
@click.option("--region", "regions", multiple=True, help="A region in which jobs may run. May be given several times.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A key of the cloud's section; `TABLE.KEY=VALUE` of a table in it; commas between the values of a list.",
)
@click.option("--address", default="", help="This computer's name or address in the nodes' network, for etcd.")
@click.option(
    "--etcd-host",
    "etcd_hosts",
    multiple=True,
    metavar="ADDRESS",
    help="The address of each of the three hosts (or five) of one etcd, this one among them. In place of --address.",
)
@click.option(
    "--join",
    type=click.File("rb"),
    metavar="FILE",
    help="Make this computer a further host: what `spotsupd join-file` prints on one. `-`: from a pipe.",
)
@click.option(
    "--etcd",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="An etcd in place of the distribution's, now or later: a release's archive from etcd's page, or the program "
    "in it. Refused where its users can be passed by, or where etcd's data cannot go to it.",
)
@click.option("--cluster", default="", help="The cluster's name.  [default: default]")
@click.option("--state-dir", default="", metavar="FOLDER", help="Where a personal installation keeps its state.")
@click.option("--replace", is_flag=True, help="Write files anew that differ. The old one is kept as NAME.old.")
@click.option("--no-start", "start", is_flag=True, flag_value=False, default=True, help="Start no unit.")
@click.option("--dry-run", is_flag=True, help="Print what would be made, and do nothing.")
@click.option(
    "--account",
    is_flag=True,
    help="Also make what the installation needs in the cloud account: network rules, and an identity for a host.",
)
@click.option(
    "--ssh-from",
    multiple=True,
    metavar="ADDRESS",
    help="With --account: from where the daemon logs in to nodes, an address or a network. May be given several "
    "times.  [default: --address, where nodes have private addresses only]",
)
@click.option("--shared-storage", is_flag=True, help="With --account: a file system for all nodes. It costs money.")
@click.option(
    "--checkpoints",
    default="",
    metavar="URL",
    help="With --account: a bucket that nodes may write to. docs/install.md has which cloud's is made.",
)
@click.option("--yes", is_flag=True, help="With --account: do not ask.")
def init(**given: Any) -> None:
    """Make an installation: configuration, keys, certificates, users of etcd, units.

    Asks for what the options do not say. May be repeated: it makes what is missing, goes on where it was interrupted,
    and leaves files that differ as they are, and says so. Makes nothing in a cloud account without --account, and does
    not start the daemon. `spotsupd destroy` undoes --account.
    """
    from supervisor.errors import UsageError
    from supervisor.installation.joining import MAX_BYTES

    with exit_on_error("spotsupd"):
        join = given.pop("join")
        options = Options(**given, join=join.read(MAX_BYTES) if join else None)
        if not options.account and (options.ssh_from or options.shared_storage or options.checkpoints or options.yes):
            raise UsageError("--ssh-from, --shared-storage, --checkpoints and --yes are for --account")
        if options.join is not None and (options.kind != "host" or options.answers_given or options.account):
            raise UsageError(
                "--join brings the configuration: of the options only --etcd, --replace and --dry-run go with it"
            )
        if options.kind != "host" and options.etcd:
            raise UsageError("--etcd is for a host: an embedded etcd is the first one on the daemon's PATH")
        if options.kind != "host":
            _init_personal(options)
        elif options.state_dir:
            raise UsageError("--state-dir is for --kind personal: a host's is /var/lib/spotsup")
        else:
            _init_host(options)


# -- a host ------------------------------------------------------------------------------------------------


def _init_host(options: Options) -> None:
    from supervisor.cli import etcd_here as etcd_unit
    from supervisor.cli.etcd_change import change_program
    from supervisor.cli.host_here import check_host, units
    from supervisor.errors import StartError, UsageError
    from supervisor.installation.answers import CA_FILE, etcd_here
    from supervisor.installation.host import Host, has_address
    from supervisor.installation.joining import CONFIG_FILE, unpack
    from supervisor.installation.layout import KEY_FILE, Secrets, host_items
    from supervisor.installation.plan import File, Make

    if os.geteuid() != 0:
        raise StartError("a host's installation is made by root: run it with sudo, or give --kind personal")
    given = unpack(options.join) if options.join is not None else {}
    configured = _configured(options, CONFIG_FILE, given.get(CONFIG_FILE))
    config = configured.config
    here = etcd_here(config, has_address)
    if options.etcd_hosts and here is None:
        raise UsageError(
            f"none of {', '.join(options.etcd_hosts)} is an address of this computer: run this on one of them"
        )
    programs, etcd = _programs(options, config, here)
    check_host(programs)
    outdated = Host().outdated(given) if given else frozenset()
    if here:
        etcd_unit.check_place(here)
    made = Secrets(secrets.token_bytes(32), f"{secrets.token_hex(32)}\n".encode(), given, outdated)
    items = partial(host_items, config, units=units(), programs=programs, secrets=made, here=here)
    account = None
    if options.account:
        if not here:
            raise UsageError("--account is for the host that has etcd: the others use what it made")
        account = _prepared(configured, options, KEY_FILE, made.cluster_key, here.members or here.names[:1])
    commands = etcd_unit.commands(config, here, etcd, start=options.start)
    if account:
        # The key is stored first: what is made in the account carries its mark. The configuration gets the ids, last.
        if not options.dry_run:
            _carry_out(items(None), options, commands, asked=configured.asked)
        configured = _make_in_account(account, configured, options, CONFIG_FILE)
    steps = _carry_out(items(configured.text), options, commands, asked=configured.asked)
    if options.dry_run:
        return
    todo = list(configured.todo)
    if here:
        etcd_unit.make_certificates(here)
        change_program(config, here, etcd)
    if options.start and etcd_unit.has_systemd():
        made_files = [step.item.path for step in steps if isinstance(step, Make) and isinstance(step.item, File)]
        renewed = Path(CA_FILE) in made_files
        todo += etcd_unit.start(config, here, joins=options.join is not None, renewed=renewed)
    _say_next_of_host(config, options, steps, here, todo)


def _programs(options: Options, config: Config, here: EtcdHere | None) -> tuple[Programs, Program | None]:
    """Where the programs of this host are, and an etcd that is yet to be put there. Raises UsageError, StartError."""
    from supervisor.cli.etcd_change import fetched
    from supervisor.cli.etcd_here import program
    from supervisor.errors import UsageError
    from supervisor.installation.layout import ETCD_PROGRAM, Programs

    spotsupd = Path(sys.prefix) / "bin" / "spotsupd"
    if here is None:
        if options.etcd:
            raise UsageError("--etcd is for a host that has etcd, and etcd.endpoints name others: do it there")
        return Programs(spotsupd, Path()), None
    if options.etcd is None:
        return Programs(spotsupd, program()), None
    return Programs(spotsupd, ETCD_PROGRAM), fetched(options.etcd, config, here)


def _say_next_of_host(
    config: Config, options: Options, steps: Sequence[Step], here: EtcdHere | None, first: Sequence[str]
) -> None:
    from supervisor.cli.etcd_change import open_problem
    from supervisor.cli.etcd_here import ETCD_UNIT, TIMER, has_systemd
    from supervisor.installation.answers import ETCD_PORT
    from supervisor.installation.joining import CONFIG_FILE, joining_files
    from supervisor.installation.layout import PEER_PORT, STATE, USER
    from supervisor.installation.plan import Replace

    todo = list(first)
    if here and not (options.start and has_systemd()):
        users = f"sudo -u {USER} spotsupd etcd-users --config {CONFIG_FILE}"
        todo += [f"systemctl enable --now {ETCD_UNIT} {TIMER}", users]
    elif any(isinstance(step, Replace) for step in steps):
        todo.append(f"systemctl restart {ETCD_UNIT} spotsupd.service     # to use what was replaced")
    if options.join is not None:
        todo += [f"copy {path} from the other host" for path in joining_files(config, etcd_here=bool(here))[1]]
    elif not here:
        todo.append(f"copy the first daemon's cluster.key to {STATE}, mode 600, owner {USER}")
    if here and here.members:
        todo.append(f"let these hosts reach each other's TCP ports {ETCD_PORT} and {PEER_PORT}")
    if here and here.names:
        todo.append(f"let nodes reach TCP port {ETCD_PORT} of this computer")
    todo += [f"sudo -u {USER} spotsupd check --config {CONFIG_FILE}", "systemctl enable --now spotsupd"]
    _say_next(todo)
    if here and options.start and has_systemd() and (problem := open_problem(config, here)):
        click.echo(f"not safe yet: {problem}")


# -- for one user ------------------------------------------------------------------------------------------


def _init_personal(options: Options) -> None:
    from supervisor.installation.host import group_name, user_name
    from supervisor.installation.layout import Secrets, personal_items

    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    path = Path(home) / "spotsup" / "spotsupd.toml"
    configured = _configured(options, path)
    config, made = configured.config, Secrets(secrets.token_bytes(32), b"")
    owner = {"user": user_name(os.geteuid()), "group": group_name(os.getegid())}
    items = partial(personal_items, config, path, secrets=made, **owner)
    account = None
    if options.account:
        account = _prepared(configured, options, config.state / "cluster.key", made.cluster_key, ())
    if account:
        if not options.dry_run:
            _carry_out(items(text=None), options, [], asked=configured.asked)
        configured = _make_in_account(account, configured, options, path)
    _carry_out(items(text=configured.text), options, [], asked=configured.asked)
    if not options.dry_run:
        commands = [f"spotsupd {each} --embedded-etcd --config {path}" for each in ("check", "run")]
        _say_next([*configured.todo, *commands])


# -- both --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Configured:
    """The configuration that counts, and what it comes from."""

    config: Config
    # None where the file is not looked at.
    text: str | None
    answers: Answers | None
    # Whether a person was asked.
    asked: bool
    # What a person has still to do for it.
    todo: tuple[str, ...] = ()


def _configured(options: Options, path: Path, joined: bytes | None = None) -> Configured:
    """A file that is there counts, whatever the options say: with --replace it is written anew. `joined`: the file of
    another host."""
    import tomllib

    from supervisor.config import check_paths, load_config, parse_config
    from supervisor.installation.answers import configuration

    answers: Answers | None = None
    asked = False
    if joined is not None:
        text = joined.decode()
    elif path.exists() and not options.answers_given:
        return Configured(load_config(path), None, None, asked=False)
    else:
        answers, asked = _answers(options)
        text = configuration(answers)
    if path.exists() and not options.replace:
        return Configured(load_config(path), text, answers, asked=asked)
    return Configured(check_paths(parse_config(tomllib.loads(text), str(path))), text, answers, asked=asked)


def _prepared(
    configured: Configured, options: Options, key: Path, new_key: bytes, addresses: Sequence[str]
) -> Account | None:
    """The account, looked at, shown and agreed to; None for a dry run of what is not there yet. `addresses`: of the
    installation's hosts in the nodes' network.

    Raises UsageError, StartError, CommandRefusedError.
    """
    from provisioners.account import Wish
    from provisioners.base import ProvisionerError
    from supervisor.cli import account
    from supervisor.errors import CommandRefusedError, StartError
    from supervisor.identity import Identity, load_identity

    config = configured.config
    account.account_cloud(config)
    identity = load_identity(key) if key.exists() else Identity(new_key)
    wish = Wish(
        owner=identity.owner(config.cluster),
        ssh_from=account.ssh_sources(config, options.ssh_from, [options.address] if options.address else addresses),
        host_identity=options.kind == "host",
        shared_storage=options.shared_storage,
        checkpoints=options.checkpoints,
        permissions=account.permissions(),
    )
    try:
        opened = account.open_account(config, wish)
        whose, plan = opened.whose(), opened.missing()
    except ProvisionerError as error:
        raise StartError(f"nothing was made: {error}") from error
    if plan.problems:
        raise CommandRefusedError("; ".join(plan.problems))
    account.show(plan, whose)
    if plan.steps and options.dry_run:
        return None
    if plan.steps:
        account.agree("Make that in the account?", yes=options.yes, refusal="nothing was made")
    return opened


def _make_in_account(opened: Account, configured: Configured, options: Options, path: Path) -> Configured:
    """Make it, and the configuration with what was made. Raises StartError."""
    from supervisor.cli import account
    from supervisor.installation.answers import configuration

    made = account.make(opened)
    name = account.account_cloud(configured.config)
    text, answers = configured.text, configured.answers
    if text is not None and answers is not None:
        text = configuration(replace(answers, section=account.merged(answers.section, made.settings)))
    todo = made.todo
    section = configured.config.cloud(name)
    if section is not None and (text is None or (path.exists() and not options.replace)):
        lines = account.differing(made.settings, section.model_dump())
        todo = (*(f"in {path}, [{name}]: {line}" for line in lines), *todo)
    asked = configured.asked and options.dry_run
    return Configured(configured.config, text, answers, asked=asked, todo=todo)


def _answers(options: Options) -> tuple[Answers, bool]:
    """From the options, and from the person for what is missing. Raises UsageError where no one can be asked."""
    from provisioners.registry import CLOUDS
    from supervisor.errors import UsageError
    from supervisor.installation.answers import Answers, asked_keys, rented, section_of
    from supervisor.installation.host import guess_address

    asked = False

    def ask(question: str, option: str, default: str | None = None) -> str:
        nonlocal asked
        if not sys.stdin.isatty():
            raise UsageError(f"{question}: give {option}, or run this in a terminal")
        asked = True
        return str(click.prompt(question, default=default, type=str)).strip()

    cloud = options.cloud or ask(f"the cloud ({', '.join(CLOUDS)})", "--cloud")
    if cloud not in CLOUDS:
        raise UsageError(f"there is no cloud {cloud!r}: --cloud takes {', '.join(CLOUDS)}")
    regions, settings, address = options.regions, list(options.settings), options.address
    if cloud in rented():
        regions = regions or tuple(ask("regions, with spaces between", "--region").split())
        given = {each.partition("=")[0].partition(".")[0] for each in settings}
        missing = [key for key in asked_keys(cloud) if key not in {"regions", *given}]
        settings += [f"{key}={ask(f'{cloud}.{key}', f'--set {key}=…')}" for key in missing]
        if not address and not options.etcd_hosts and "reach=ssh" not in settings:
            question = "this computer's address in the nodes' network"
            address = ask(question, "--address", guess_address() or None)
    elif regions or settings:
        raise UsageError(f"--region and --set are for clouds that are rented, and {cloud} is this computer")
    section = section_of(cloud, regions, settings)
    return Answers(
        options.kind,
        cloud,
        options.cluster or "default",
        address,
        str(Path(options.state_dir).absolute()) if options.state_dir else "",
        options.etcd_hosts,
        section,
    ), asked


def _carry_out(items: Sequence[Item], options: Options, commands: Sequence[str], *, asked: bool) -> list[Step]:
    """Say the steps, and take them. Raises StartError, CommandRefusedError."""
    from supervisor.errors import CommandRefusedError, StartError
    from supervisor.installation.host import Host
    from supervisor.installation.plan import Keep, plan

    host = Host()
    steps, problems = plan(items, host.facts(items), replace=options.replace)
    if problems:
        raise StartError(f"nothing was made: {'; '.join(problems)}")
    if options.dry_run or asked:
        for each in [*map(str, steps), *commands]:
            click.echo(f"would {each}")
        if options.dry_run:
            return steps
        if not click.confirm("do that?", default=True):
            raise CommandRefusedError("nothing was made")
    for step in steps:
        host.take(step)
        click.echo(str(step) if isinstance(step, Keep) else f"done: {step}")
    if not steps:
        click.echo("all files are there")
    return steps


def _say_next(todo: Sequence[str]) -> None:
    click.echo("next:")
    for each in todo:
        click.echo(f"    {each}")
