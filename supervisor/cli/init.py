"""`spotsupd init`: makes an installation on this computer, or says what it would make."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli.common import exit_on_error

if TYPE_CHECKING:
    from provisioners.account import Account
    from supervisor.cli.own_etcd import Survey
    from supervisor.config import Config
    from supervisor.installation.answers import Answers, EtcdHere, Kind
    from supervisor.installation.plan import Item, Step


CEILING_USD = "20"  # what is proposed


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    kind: Kind
    cloud: str
    cluster: str
    regions: tuple[str, ...]
    settings: tuple[str, ...]
    usd_per_hour: str | None
    address: str
    state_dir: str
    # URLs of an etcd of one's own, as given; "" for one on this host.
    etcd: str
    etcd_ca: Path | None
    etcd_login: Path | None
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
        """True if any of them says what the configuration should be."""
        own = self.cloud or self.cluster or self.regions or self.settings or self.usd_per_hour
        return bool(own or self.address or self.etcd or self.state_dir)


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
@click.option(
    "--usd-per-hour",
    metavar="USD",
    help="What the machines of all jobs together may cost per hour at most, or `none`. [queue.cluster] has it.",
)
@click.option("--address", default="", help="This computer's name or address in the nodes' network, for etcd.")
@click.option(
    "--etcd",
    default="",
    metavar="URL,URL,…",
    help="The members of an etcd of your own, with TLS and users, in place of one on this host and of --address. It is "
    "checked, and gets the daemons' user.",
)
@click.option(
    "--etcd-ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --etcd: the CA of its certificates; nodes get it, too.",
)
@click.option(
    "--etcd-login",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    metavar="FILE",
    help="With --etcd: a file with NAME:PASSWORD of one of its users with the role root, `-` for standard input. It is "
    "not kept.  [default: asks for the password of root]",
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
    from supervisor.installation.answers import etcd_urls

    with exit_on_error("spotsupd"):
        options = Options(**given)
        if not options.account and (options.ssh_from or options.shared_storage or options.checkpoints or options.yes):
            raise UsageError("--ssh-from, --shared-storage, --checkpoints and --yes are for --account")
        if options.etcd and (options.kind != "host" or options.address):
            raise UsageError("--etcd is for a host (--kind host), and names what nodes reach: leave --address out")
        if options.etcd:
            etcd_urls(options.etcd)  # what is no URL, as once a program was, is said first
        if bool(options.etcd) is not bool(options.etcd_ca) or (options.etcd_login and not options.etcd):
            raise UsageError(
                "--etcd needs --etcd-ca FILE, the CA of its certificates; this and --etcd-login are for --etcd"
            )
        if options.kind != "host":
            _init_personal(options)
        elif options.state_dir:
            raise UsageError("--state-dir is for --kind personal: a host's is /var/lib/spotsup")
        else:
            _init_host(options)


# -- a host ------------------------------------------------------------------------------------------------


def _init_host(options: Options) -> None:
    from supervisor.cli import etcd_here as etcd_unit
    from supervisor.cli.host_here import check_host, units
    from supervisor.cli.own_etcd import make_user
    from supervisor.errors import StartError, UsageError
    from supervisor.installation.answers import etcd_here
    from supervisor.installation.host import Host
    from supervisor.installation.layout import CONFIG_FILE, KEY_FILE, Programs, host_items

    if os.geteuid() != 0:
        raise StartError("a host's installation is made by root: run it with sudo, or give --kind personal")
    configured = _configured(options, CONFIG_FILE)
    config = configured.config
    here = etcd_here(config)
    if here and options.etcd:
        raise UsageError(f"{CONFIG_FILE} has etcd on this host: --replace writes it anew, with the etcd of --etcd")
    programs = Programs(Path(sys.prefix) / "bin" / "spotsupd", etcd_unit.program() if here else Path())
    check_host(programs)
    if here:
        etcd_unit.check_place(here)
    found = _surveyed(options, config)
    made = _secrets(options, here)
    items = partial(host_items, units=units(), programs=programs, secrets=made, here=here, ca=_own_ca(options))
    carry_out = partial(
        _carry_out, options=options, commands=etcd_unit.commands(config, here, start=options.start) if here else ()
    )
    if options.account and KEY_FILE not in made:
        raise UsageError("--account is for the host that has etcd, or with --etcd: the others use what it made")
    key = KEY_FILE, made.get(KEY_FILE, b"")
    configured = _with_account(configured, options, CONFIG_FILE, key, here.names[:1] if here else (), items, carry_out)
    steps = carry_out(items(configured.text), asked=configured.asked)
    if options.dry_run:
        return
    if here:
        etcd_unit.make_certificates(here)
    if found and found.admin:
        make_user(found.admin, config.etcd_password())
    starts = options.start and etcd_unit.has_systemd()
    if starts:
        Host().run("systemctl", "daemon-reload")
    if starts and here:
        etcd_unit.start(config)
    _say_next_of_host(config, steps, here, configured.todo, started=starts)


def _surveyed(options: Options, config: Config) -> Survey | None:
    """Return what was found of an etcd of one's own. Raises CommandRefusedError where it is not ready for spotsup."""
    from supervisor.cli.own_etcd import survey
    from supervisor.installation.answers import PASSWORD_FILE

    if not options.etcd:
        return None
    file = Path(PASSWORD_FILE)
    known = file.read_text().strip() if file.exists() else ""
    found = survey(config, str(options.etcd_ca), options.etcd_login, known)
    found.show()
    return found


def _own_ca(options: Options) -> bytes | None:
    from supervisor.errors import UsageError

    try:
        return options.etcd_ca.read_bytes() if options.etcd_ca else None
    except OSError as error:
        raise UsageError(f"--etcd-ca {options.etcd_ca} cannot be read: {error.strerror}") from error


def _secrets(options: Options, here: EtcdHere | None) -> dict[Path, bytes]:
    """Return what is made where it is missing. A host that shares an etcd with others has theirs, and makes none."""
    from supervisor.installation.answers import PASSWORD_FILE
    from supervisor.installation.layout import KEY_FILE

    made = {Path(PASSWORD_FILE): f"{secrets.token_hex(32)}\n".encode(), KEY_FILE: secrets.token_bytes(32)}
    return {path: data for path, data in made.items() if here or options.etcd or path.exists()}


def _say_next_of_host(
    config: Config, steps: Sequence[Step], here: EtcdHere | None, first: Sequence[str], *, started: bool
) -> None:
    from urllib.parse import urlsplit

    from supervisor.cli.etcd_here import ETCD_UNIT, open_problem
    from supervisor.installation.answers import ETCD_PORT, without_ceiling
    from supervisor.installation.layout import CONFIG_FILE, KEY_FILE, USER
    from supervisor.installation.plan import Replace

    todo = list(first)
    if here and not started:
        users = f"sudo -u {USER} spotsupd etcd-users --config {CONFIG_FILE}"
        todo += [f"systemctl enable --now {ETCD_UNIT}", users]
    elif any(isinstance(step, Replace) for step in steps):
        units = f"{ETCD_UNIT} spotsupd.service" if here else "spotsupd.service"
        todo.append(f"systemctl restart {units}     # to use what was replaced")
    if here and here.names:
        todo.append(f"let nodes reach TCP port {ETCD_PORT} of this computer")
    if not here:
        etcd = config.etcd
        shared = [str(KEY_FILE), *filter(None, (etcd.ca, etcd.password_file))]
        todo += [f"copy {path} from the first host" for path in shared if not Path(path).exists()]
        hosts = ", ".join(urlsplit(url).hostname or url for url in etcd.node_endpoints or etcd.endpoints)
        todo.append(f"let this computer and nodes reach etcd at {hosts}")
    todo += [f"sudo -u {USER} spotsupd check --config {CONFIG_FILE}", "systemctl enable --now spotsupd"]
    _say_next(todo)
    etcd_problem = open_problem(config) if here and started else ""
    _say_what_is_open(without_ceiling(config), f"not safe yet: {etcd_problem}" if etcd_problem else "")


# -- for one user ------------------------------------------------------------------------------------------


def _init_personal(options: Options) -> None:
    from supervisor.installation.answers import without_ceiling
    from supervisor.installation.host import group_name, user_name
    from supervisor.installation.layout import personal_items

    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    path = Path(home) / "spotsup" / "spotsupd.toml"
    configured = _configured(options, path)
    config, new_key = configured.config, secrets.token_bytes(32)
    user, group = user_name(os.geteuid()), group_name(os.getegid())
    items = partial(personal_items, config, path, key=new_key, user=user, group=group)
    carry_out = partial(_carry_out, options=options, commands=())
    key = config.state / "cluster.key", new_key
    configured = _with_account(configured, options, path, key, (), items, carry_out)
    carry_out(items(configured.text), asked=configured.asked)
    if not options.dry_run:
        commands = [f"spotsupd {each} --embedded-etcd --config {path}" for each in ("check", "run")]
        _say_next([*configured.todo, *commands])
        _say_what_is_open(without_ceiling(config))


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


def _configured(options: Options, path: Path) -> Configured:
    """Return what is configured. A file that is there counts, whatever the options say: with --replace it is written
    anew."""
    import tomllib

    from supervisor.config import check_paths, load_config, parse_config
    from supervisor.installation.answers import configuration

    if path.exists() and not options.answers_given:
        return Configured(load_config(path), None, None, asked=False)
    answers, asked = _answers(options)
    text = configuration(answers)
    if path.exists() and not options.replace:
        return Configured(load_config(path), text, answers, asked=asked)
    return Configured(check_paths(parse_config(tomllib.loads(text), str(path))), text, answers, asked=asked)


def _with_account(
    configured: Configured,
    options: Options,
    path: Path,
    key: tuple[Path, bytes],
    addresses: Sequence[str],
    items: Callable[[str | None], Sequence[Item]],
    carry_out: Callable[..., object],
) -> Configured:
    """Return the configuration with what is made in the cloud account, if anything is. `key`: the cluster's, and what
    it becomes where there is none. `addresses`: of this host in the nodes' network."""
    opened = _prepared(configured, options, *key, addresses) if options.account else None
    if opened is None:
        return configured
    # The key is stored first: what is made in the account carries its mark. The configuration gets the ids, last.
    if not options.dry_run:
        carry_out(items(None), asked=configured.asked)
    return _make_in_account(opened, configured, options, path)


def _prepared(
    configured: Configured, options: Options, key: Path, new_key: bytes, addresses: Sequence[str]
) -> Account | None:
    """Return the account, looked at, shown and agreed to; None for a dry run of what is not there yet.

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
    """Return the answers from the options, and from the person for what is missing. Raises UsageError where no one can
    be asked."""
    from provisioners.registry import CLOUDS
    from supervisor.errors import UsageError
    from supervisor.installation.answers import (
        Answers,
        amount,
        asked_keys,
        etcd_urls,
        needs_address,
        rented,
        section_of,
    )
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
    usd_per_hour = options.usd_per_hour
    if cloud in rented():
        if "regions" in CLOUDS[cloud].settings.model_fields:
            regions = regions or tuple(ask("regions, with spaces between", "--region").split())
        given = {each.partition("=")[0].partition(".")[0] for each in settings}
        missing = [key for key in asked_keys(cloud) if key not in {"regions", *given}]
        settings += [f"{key}={ask(asked_keys(cloud)[key], f'--set {key}=…')}" for key in missing]
        if not address and not options.etcd and needs_address(cloud, section_of(cloud, regions, settings)):
            question = "this computer's address in the nodes' network"
            address = ask(question, "--address", guess_address() or None)
        if usd_per_hour is None and CLOUDS[cloud].bills and not options.yes and sys.stdin.isatty():
            usd_per_hour = ask("US dollars per hour that all machines together may cost, or none", "", CEILING_USD)
    elif regions or settings or usd_per_hour:
        raise UsageError(
            f"--region, --set and --usd-per-hour are for clouds that are rented, and {cloud} is this computer"
        )
    section = section_of(cloud, regions, settings)
    return Answers(
        options.kind,
        cloud,
        options.cluster or "default",
        address,
        str(Path(options.state_dir).absolute()) if options.state_dir else "",
        etcd_urls(options.etcd) if options.etcd else (),
        section=section,
        usd_per_hour=amount(usd_per_hour or "none"),
    ), asked


def _carry_out(items: Sequence[Item], *, options: Options, commands: Sequence[str], asked: bool) -> list[Step]:
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


def _say_what_is_open(*sentences: str) -> None:
    for each in filter(None, sentences):
        click.echo(each)
