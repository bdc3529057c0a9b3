"""`spotsupd init` as people run it: for one user in a home folder, and for a host in a mount namespace of its own.

There /etc, /var/lib and the programs can be changed without changing this computer."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from supervisor.config import load_config
from tests.support.newer_etcd import newer_etcd
from tests.support.programs import find_program, program_env, run_module
from tools.setup.errors import SetupError
from tools.stack import ROOT

pytestmark = pytest.mark.long

# -- for one user ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Home:
    """A user's folders."""

    folder: Path

    def init(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environ = {"HOME": str(self.folder), "XDG_CONFIG_HOME": "", "XDG_STATE_HOME": str(self.folder / "state")}
        return run_module("supervisor.cli.daemon", "init", "--kind", "personal", *arguments, environ=environ)

    @property
    def config(self) -> Path:
        return self.folder / ".config" / "spotsup" / "spotsupd.toml"

    def files(self) -> dict[str, tuple[int, bytes]]:
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(path): (stat.S_IMODE(path.stat().st_mode), path.read_bytes()) for path in found}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a mount namespace, and users")


def test_nobody_is_asked_where_there_is_no_terminal(home: Home) -> None:
    for arguments, message in (
        ((), "the cloud (local, aws, gcp, azure): give --cloud, or run this in a terminal"),
        (("--cloud", "gcp", "--region", "us-central1"), "gcp.project: give --set project=…"),
        (("--cloud", "aws"), "regions, with spaces between: give --region"),
        (("--cloud", "mainframe"), "there is no cloud 'mainframe'"),
        (("--cloud", "local", "--region", "x"), "local is this computer"),
    ):
        done = home.init(*arguments)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert home.files() == {}


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

_BOX = r"""
set -e
box=$1 python=$2 etcd=$3 packages=$4
shift 4
mount -t tmpfs tmpfs "$box"
mkdir -p "$box/etc" "$box/work" "$box/bin" "$box/bin-work"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$box/etc,workdir=$box/work" /etc
mount -t overlay overlay -o "lowerdir=/usr/bin,upperdir=$box/bin,workdir=$box/bin-work" /usr/bin
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs tmpfs /opt
mount -t tmpfs tmpfs /run
[ -e /usr/bin/etcd ] || cp "$etcd" /usr/bin/etcd
# An interpreter as the system's: the unit could not start one in a home folder.
mkdir -p /opt/python/bin /opt/spotsup/bin
cp "$python" /opt/python/bin/python3
ln -s /opt/python/bin/python3 /opt/spotsup/bin/python
printf 'home = /opt/python/bin\n' >/opt/spotsup/pyvenv.cfg
cat >/opt/spotsup/bin/spotsupd <<'END'
import sys
from supervisor.cli.daemon import main
sys.argv[0] = "spotsupd"
main()
END
spotsupd() {
    PYTHONHOME=$HOME_OF_PYTHON PYTHONPATH=$packages /opt/spotsup/bin/python /opt/spotsup/bin/spotsupd "$@"
}
"""


# In systemd's place: etcd runs as its unit and its drop-ins say, without the confinement.
_SYSTEMD = r"""
ip link set lo up
ip address add 10.9.0.5/32 dev lo
mkdir -p /run/systemd/system
cat >/usr/bin/systemctl <<'END'
#!/bin/bash
folder=/etc/systemd/system unit=spotsup-etcd.service
start() {
    set -a
    . <(sed -n 's/^Environment=//p' $folder/$unit)
    . /etc/spotsup/etcd.env
    set +a
    program=$(cat $folder/$unit $folder/$unit.d/*.conf 2>/dev/null | sed -n 's/^ExecStart=\(..*\)/\1/p' | tail -1)
    mkdir -p $ETCD_DATA_DIR && chown spotsup:spotsup $ETCD_DATA_DIR && chmod 700 $ETCD_DATA_DIR
    setpriv --reuid spotsup --regid spotsup --clear-groups $program >>/run/etcd.log 2>&1 &
    echo $! >/run/etcd.pid
    for _ in $(seq 300); do (echo >/dev/tcp/127.0.0.1/2379) 2>/dev/null && return; sleep 0.1; done
    tail -5 /run/etcd.log
    exit 1
}
runs() { [ -e /run/etcd.pid ] && kill -0 "$(cat /run/etcd.pid)" 2>/dev/null; }
stop() { ! runs || { kill "$(cat /run/etcd.pid)"; while runs; do sleep 0.05; done; }; }
case "$1 $*" in
    is-active*) runs ;;
    stop*) stop ;;
    restart*) stop; start ;;
    enable*--now*etcd*|start*) runs || start ;;
esac
END
chmod 755 /usr/bin/systemctl
trap 'systemctl stop' EXIT
"""


def host(script: str, tmp_path: Path, *isolated: str) -> str:
    """Run a script on a host of its own; what it prints, errors with it. `isolated`: more options of unshare."""
    (tmp_path / "box").mkdir()
    places = [str(place) for place in (ROOT, ROOT / "trainer", ROOT / "client")]
    packages = ":".join([*places, *(path for path in sys.path if "site-packages" in path)])
    done = subprocess.run(
        [
            *("unshare", "--mount", *isolated, "--propagation", "private"),
            *("bash", "-c", _BOX + script, "box", tmp_path / "box"),
            *(Path(sys.executable).resolve(), find_program("etcd"), packages),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
        timeout=120,
        env={**program_env(), "HOME_OF_PYTHON": sys.base_prefix, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


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
    assert "`apt-get install etcd-server`, then repeat" in lines[2]


@pytest.mark.nightly
@as_root
def test_a_persons_own_etcd_takes_the_place_of_the_distributions_and_stays_there(tmp_path: Path) -> None:
    said = host(
        f"""
        mount -t tmpfs tmpfs /usr/local && mkdir /usr/local/lib
        umask 077
        claim() {{ printf '#!/bin/sh\necho "etcd Version: %s"\n' "$2" >"$box/$1"; }}
        claim open 3.5.32
        claim closed 3.5.33
        ! spotsupd init {AWS} --etcd "$box/open"
        ! spotsupd init {AWS} --etcd /bin/true
        [ ! -e /etc/spotsup ] && ! id spotsup 2>/dev/null && [ ! -e /usr/local/lib/spotsup ]
        rm /usr/bin/etcd
        echo == first
        spotsupd init {AWS} --etcd "$box/closed"
        echo == again
        spotsupd init {AWS} --dry-run
        stat --format '%A %U:%G %n' /usr/local/lib/spotsup /usr/local/lib/spotsup/*
        cat /etc/systemd/system/spotsup-etcd.service.d/program.conf
        """,
        tmp_path,
    )
    refused, first, again = re.split(r"== \w+\n", said)
    assert "nothing was made: users of etcd 3.5.32 can be passed by" in refused
    assert "/bin/true is no etcd" in refused
    assert "done: write /etc/systemd/system/spotsup-etcd.service.d/program.conf" in first
    assert "etcd 3.5.33 is at /usr/local/lib/spotsup/etcd" in first
    assert "would write" not in again, "the unit is as it was"
    assert "drwxr-xr-x root:root /usr/local/lib/spotsup\n-rwxr-xr-x root:root /usr/local/lib/spotsup/etcd\n" in again
    assert again.endswith("ExecStart=\nExecStart=/usr/local/lib/spotsup/etcd\n")


@pytest.mark.nightly
@as_root
def test_etcd_is_started_with_users_and_goes_to_a_persons_own_program(tmp_path: Path) -> None:
    """The program claims to be what it is not: it serves, and the claim is found out."""
    try:
        newer = newer_etcd()
    except SetupError as error:
        pytest.skip(str(error))
    aws = "--cloud aws --region us-east-1 --address 10.9.0.5"
    said = host(
        f"""
        {_SYSTEMD}
        mount -t tmpfs tmpfs /usr/local && mkdir /usr/local/lib
        cp {newer} /usr/local/newer
        mkdir "$box/etcd-v3.5.33-linux-amd64"
        printf '#!/bin/sh\n[ "$1" = --version ] && echo "etcd Version: 3.5.33" && exit\nexec /usr/local/newer "$@"\n' \
            >"$box/etcd-v3.5.33-linux-amd64/etcd"
        tar -C "$box" -czf "$box/etcd.tar.gz" etcd-v3.5.33-linux-amd64
        spotsupd init {aws}
        echo == changed
        ! spotsupd init --etcd "$box/etcd.tar.gz"
        echo == again
        spotsupd init
        echo == back
        systemctl stop
        ! spotsupd init --etcd "$box/etcd-v3.5.33-linux-amd64/etcd"
        """,
        tmp_path,
        "--net",
    )
    first, changed, again, back = re.split(r"== \w+\n", said)
    assert "etcd answers to users only; the daemons' is spotsupd" in first
    # Debian's, and its last line.
    assert "not safe yet: etcd 3.4." in first.splitlines()[-1]
    assert "etcd 3.5.33 is at /usr/local/lib/spotsup/etcd" in changed
    assert "etcd is 3.5.1 after its restart" in changed
    assert "nothing to do: etcd has its users" in again
    assert "etcd has data here and does not answer, so its version is not known" in back


@pytest.mark.nightly
@as_root
def test_a_further_host_takes_what_the_first_one_gives_and_nothing_else(tmp_path: Path) -> None:
    said = host(
        f"""
        cd /
        ! spotsupd join-file >"$box/none"
        [ ! -s "$box/none" ]
        spotsupd init {AWS} >/dev/null
        echo 'AWS_ACCESS_KEY_ID=x' >/etc/spotsup/environment
        spotsupd join-file >"$box/given"
        ! spotsupd init --join - --cloud aws <"$box/given"
        ! spotsupd init --join - </dev/null
        ! spotsupd init --cloud aws --region us-east-1 --etcd-host 10.255.1.1 --etcd-host 10.255.1.2 \\
            --etcd-host 10.255.1.3 --replace
        rm /var/lib/spotsup/cluster.key
        head -c 32 /dev/zero >/var/lib/spotsup/cluster.key
        ! spotsupd init --join - <"$box/given"
        rm -r /var/lib/spotsup /etc/spotsup
        echo == joined
        spotsupd init --join - <"$box/given"
        echo == files
        stat --format '%A %U:%G %n' etc/spotsup/* var/lib/spotsup/* var/lib/spotsup/tls/*
        cat /etc/spotsup/environment
        spotsupd join-file | diff "$box/given" - && echo the same
        # Where the file comes from the CA is replaced; this host is away, and learns of each step by another file.
        cp -r /var/lib/spotsup/tls "$box/tls"
        there() {{
            mount --bind "$box/tls" /var/lib/spotsup/tls
            PYTHONHOME=$HOME_OF_PYTHON PYTHONPATH=$packages /opt/spotsup/bin/python -c "$rotation$1"
            spotsupd join-file >"$box/given"
            umount /var/lib/spotsup/tls
        }}
        rotation='
import datetime as dt
from pathlib import Path
from supervisor.journal import ca_rotation as ca
from supervisor.journal.certificates import TlsFiles
files, now = TlsFiles(Path("/var/lib/spotsup/tls")), dt.datetime.now(dt.UTC) + dt.timedelta(seconds=5)
'
        there "ca.begin(files, now)"
        echo == begun
        spotsupd init --join - <"$box/given"
        [ -e /var/lib/spotsup/tls/next-ca.key ]
        there "ca.sign(files, now); ca.finish(files)"
        echo == finished
        spotsupd init --join - <"$box/given"
        ls /var/lib/spotsup/tls
        cmp /var/lib/spotsup/tls/ca.crt "$box/tls/ca.crt"
        """,
        tmp_path,
    )
    refused, joined, files, begun, finished = re.split(r"== \w+\n", said)
    for text in (
        "cannot read the configuration /etc/spotsup/spotsupd.toml",
        "of the options only --etcd, --replace and --dry-run go with it",
        "--join got nothing: the command before the pipe has failed",
        "none of 10.255.1.1, 10.255.1.2, 10.255.1.3 is an address of this computer",
        "/var/lib/spotsup/cluster.key of this host is another one, so it belongs to another installation",
    ):
        assert text in refused
    assert "copy" not in joined
    assert "made a certificate for" in joined, "by the CA that is there"
    assert "-rw------- spotsup:spotsup var/lib/spotsup/cluster.key" in files
    assert "-rw------- spotsup:spotsup var/lib/spotsup/tls/ca.crt" in files
    assert "AWS_ACCESS_KEY_ID=x\nthe same\n" in files
    assert "done: write /var/lib/spotsup/tls/next-ca.key" in begun
    assert "made a certificate" not in begun
    assert "done: delete /var/lib/spotsup/tls/next-ca.key" in finished
    assert "made a certificate for" in finished, "of the new CA"
    assert finished.endswith("ca.crt\nca.key\netcd.crt\netcd.key\n")
