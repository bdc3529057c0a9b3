"""`spotsupd init` as people run it: for one user in a home folder, and for a host in a mount namespace of its own.

There /etc, /var/lib and the programs can be changed without changing this computer."""

from __future__ import annotations

import re
import stat
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from supervisor.config import load_config
from tests.support.host_box import SYSTEMD, as_root, host
from tests.support.newer_etcd import newer_etcd
from tests.support.programs import run_at_a_terminal, run_module
from tools.setup.errors import SetupError

pytestmark = pytest.mark.long

# -- for one user ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Home:
    """A user's folders."""

    folder: Path

    def init(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_module(*self._command, *arguments, environ=self._environ)

    def init_at_a_terminal(self, *arguments: str, typed: str) -> tuple[int, str]:
        return run_at_a_terminal(*self._command, *arguments, typed=typed, environ=self._environ)

    @property
    def _command(self) -> tuple[str, ...]:
        return "supervisor.cli.daemon", "init", "--kind", "personal"

    @property
    def _environ(self) -> dict[str, str]:
        return {"HOME": str(self.folder), "XDG_CONFIG_HOME": "", "XDG_STATE_HOME": str(self.folder / "state")}

    @property
    def config(self) -> Path:
        return self.folder / ".config" / "spotsup" / "spotsupd.toml"

    def files(self) -> dict[str, tuple[int, bytes]]:
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(path): (stat.S_IMODE(path.stat().st_mode), path.read_bytes()) for path in found}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_nobody_is_asked_where_there_is_no_terminal(home: Home) -> None:
    for arguments, message in (
        ((), "the cloud (local, aws, gcp, azure, own): give --cloud, or run this in a terminal"),
        (("--cloud", "gcp", "--region", "us-central1"), "gcp.project: give --set project=…"),
        (("--cloud", "aws"), "regions, with spaces between: give --region"),
        (("--cloud", "own"), "the hosts, as USER@HOST or USER@HOST:PORT, with commas between: give --set hosts=…"),
        (("--cloud", "mainframe"), "there is no cloud 'mainframe'"),
        (("--cloud", "local", "--region", "x"), "local is this computer"),
    ):
        done = home.init(*arguments)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert home.files() == {}


def test_who_rents_is_asked_what_all_machines_may_cost_at_most(home: Home) -> None:
    rented = ("--cloud", "aws", "--region", "us-east-1", "--set", "reach=ssh")
    exit_code, screen = home.init_at_a_terminal(*rented, typed="\ny")
    assert (exit_code, "all machines together may cost, or none [20]: " in screen) == (0, True), screen
    assert load_config(home.config).queue.cluster.usd_per_hour == 20
    assert "nothing limits" not in screen
    silent = home.init(*rented, "--replace")
    assert "nothing limits what all jobs together cost" in silent.stdout
    assert load_config(home.config).queue.cluster.usd_per_hour is None


def test_one_user_gets_a_configuration_and_a_key_and_what_is_there_is_kept(home: Home) -> None:
    dry = home.init("--cloud", "local", "--dry-run")
    assert (dry.returncode, dry.stderr, home.files()) == (0, "", {})
    assert f"would write {home.config}" in dry.stdout
    done = home.init("--cloud", "local", "--cluster", "mine", "--state-dir", str(home.folder / "state"))
    assert (done.returncode, done.stderr) == (0, "")
    config = load_config(home.config)
    assert (config.cluster, config.etcd.secure, config.state) == ("mine", True, home.folder / "state")
    made = home.files()
    assert {mode for mode, _ in made.values()} == {0o600}
    again = home.init()
    assert again.stdout.startswith("all files are there\n")
    assert home.files() == made
    other = home.init("--cloud", "local", "--cluster", "other", "--state-dir", str(home.folder / "state"))
    assert '+cluster = "other"' in other.stdout
    assert home.files() == made
    home.init("--cloud", "local", "--cluster", "other", "--state-dir", str(home.folder / "state"), "--replace")
    assert tomllib.loads(home.config.read_text())["cluster"] == "other"
    assert home.config.with_name("spotsupd.toml.old").read_bytes() == made[str(home.config)][1]


# -- a host ----------------------------------------------------------------------------------------------------

# 127.0.0.1 is no address for rented machines; a DNS name is one, and needs none of this computer's.
AWS = "--cloud aws --region us-east-1 --address etcd.example"


@as_root
@pytest.mark.long
def test_a_host_is_installed_once_and_repeated_without_a_change(tmp_path: Path) -> None:
    said = host(
        f"""
        cd /
        files() {{ find etc/spotsup var/lib/spotsup etc/systemd/system/spotsup* -type f -exec sha256sum {{}} + |
            sort; }}
        spotsupd init {AWS} --dry-run
        [ ! -e /etc/spotsup ] && [ ! -e /var/lib/spotsup ] && ! id spotsup 2>/dev/null
        echo == first
        spotsupd init {AWS}
        echo == files
        stat --format '%A %U:%G %n' etc/spotsup/* var/lib/spotsup/* var/lib/spotsup/tls/* etc/systemd/system/spotsup*
        files >"$box/before"
        echo == second
        spotsupd init
        files | diff "$box/before" -
        setpriv --reuid spotsup --regid spotsup --clear-groups test -r /etc/spotsup/spotsupd.toml
        """,
        tmp_path,
    )
    dry, first, files, second = re.split(r"== \w+\n", said)
    assert "would make the system user spotsup" in dry
    assert "would make a CA" in dry
    assert "done: write /etc/spotsup/spotsupd.toml" in first
    assert "etcd.example, valid until" in first
    assert "let nodes reach TCP port 2379" in first
    modes = {line.split()[2]: line.rsplit(" ", 1)[0] for line in files.splitlines()}
    assert modes["var/lib/spotsup/cluster.key"] == "-rw------- spotsup:spotsup"
    assert modes["var/lib/spotsup/etcd.password"] == "-rw------- spotsup:spotsup"
    assert modes["var/lib/spotsup/tls/ca.key"] == "-rw------- spotsup:spotsup"
    assert modes["etc/spotsup/spotsupd.toml"] == "-rw-r----- root:spotsup"
    assert modes["etc/spotsup/environment"] == "-rw------- root:root"
    assert modes["etc/systemd/system/spotsupd.service"] == "-rw-r--r-- root:root"
    assert second.startswith("all files are there\n")


@pytest.mark.nightly
@as_root
def test_what_a_person_changed_is_kept_and_what_is_missing_is_made(tmp_path: Path) -> None:
    said = host(
        f"""
        spotsupd init {AWS} >/dev/null
        key=$(sha256sum /var/lib/spotsup/cluster.key)
        echo '# mine' >>/etc/systemd/system/spotsupd.service
        chmod 644 /var/lib/spotsup/cluster.key
        rm /etc/spotsup/etcd.env
        echo == kept
        spotsupd init --cloud aws --region eu-west-1 --address etcd.example
        grep -q '# mine' /etc/systemd/system/spotsupd.service
        grep -q us-east-1 /etc/spotsup/spotsupd.toml
        echo == replaced
        spotsupd init --cloud aws --region eu-west-1 --address etcd.example --replace
        ! grep -q '# mine' /etc/systemd/system/spotsupd.service
        grep -q '# mine' /etc/systemd/system/spotsupd.service.old
        grep -q eu-west-1 /etc/spotsup/spotsupd.toml
        [ "$key" = "$(sha256sum /var/lib/spotsup/cluster.key)" ]
        """,
        tmp_path,
    )
    _, kept, replaced = re.split(r"== \w+\n", said)
    assert '-regions = ["us-east-1"]\n    +regions = ["eu-west-1"]' in kept
    assert "keep /etc/systemd/system/spotsupd.service as it is; --replace would write it anew:" in kept
    assert "done: write /etc/spotsup/etcd.env" in kept
    assert "done: give /var/lib/spotsup/cluster.key to spotsup:spotsup, mode 600" in kept
    assert "done: replace /etc/spotsup/spotsupd.toml, and keep the old one as spotsupd.toml.old" in replaced


@as_root
@pytest.mark.long
def test_what_cannot_work_is_said_before_anything_is_made(tmp_path: Path) -> None:
    said = host(
        f"""
        mkdir -p /var/lib/spotsup && touch /etc/spotsup
        ! spotsupd init {AWS}
        rm /etc/spotsup
        ! spotsupd init --cloud aws --region us-east-1 --address 203.0.113.77
        rm /usr/bin/etcd
        ! spotsupd init {AWS}
        [ ! -e /etc/spotsup ] && ! id spotsup 2>/dev/null && [ -z "$(ls /var/lib/spotsup)" ]
        """,
        tmp_path,
    )
    lines = said.splitlines()
    assert "nothing was made: /etc/spotsup is a file: move it away" in lines[0]
    assert "203.0.113.77 is no address of this computer" in lines[1]
    assert "there is no etcd on this computer: `apt-get install etcd-server`" in lines[2]


@pytest.mark.nightly
@as_root
def test_etcd_is_started_with_users_and_a_persons_own_program_goes_before_the_distributions(tmp_path: Path) -> None:
    try:
        newer = newer_etcd()
    except SetupError as error:
        pytest.skip(str(error))
    aws = "--cloud aws --region us-east-1 --address 10.9.0.5"
    said = host(
        f"""
        {SYSTEMD}
        spotsupd init {aws}
        echo == changed
        mount -t tmpfs tmpfs /usr/local && mkdir /usr/local/bin && cp {newer} /usr/local/bin/etcd
        spotsupd init
        echo == replaced
        spotsupd init --replace
        systemctl restart spotsup-etcd
        echo == again
        spotsupd init
        """,
        tmp_path,
        "--net",
    )
    first, changed, replaced, again = re.split(r"== \w+\n", said)
    assert "etcd answers to users only; the daemons' is spotsupd" in first
    # Debian's, and its last line.
    assert "not safe yet: etcd 3.4." in first.splitlines()[-1]
    assert "keep /etc/systemd/system/spotsup-etcd.service as it is; --replace would write it anew:" in changed
    assert "+ExecStart=/usr/local/bin/etcd" in changed
    assert "systemctl restart spotsup-etcd.service spotsupd.service     # to use what was replaced" in replaced
    assert "nothing to do: etcd has its users" in again
    assert "not safe yet: etcd 3.5.1" in again


@as_root
def test_what_was_taken_away_is_said_with_what_to_do_instead(home: Home) -> None:
    assert "`spotsupd init --etcd URL,URL,URL --etcd-ca FILE` takes it" in home.init("--join", "-").stderr
    assert "/usr/local/bin/etcd" in home.init("--kind", "host", "--cloud", "local", "--etcd", "etcd.tar.gz").stderr
