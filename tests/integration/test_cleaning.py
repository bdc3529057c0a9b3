"""What a job leaves on a machine of our own, and that none of it is left: the script runs as root in namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bootstrap.cleaning.step import wipe
from bootstrap.model import Paths
from bootstrap.templates import fill

UID = 4242
NAMESPACES = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--mount-proc"]

# Folders in which this computer has anything of its own are hidden from the script.
PLACE = r"""
set -eu
box=$1
mount --make-rprivate /
cp /etc/passwd "$box/passwd"
echo "trainee:x:4242:4242::$box/home:/bin/sh" >>"$box/passwd"
mount --bind "$box/passwd" /etc/passwd
for each in /run /opt /var/spool /var/lib; do [ ! -d "$each" ] || mount -t tmpfs none "$each"; done
mkdir -p "$box/home/.ssh" "$box/home/.spotsup/environments/e1" "$box/tmp" "$box/shm"
echo key >"$box/home/.ssh/authorized_keys"
echo of the image >"$box/home/.bashrc"
chown -R 4242:4242 "$box/home"
sleep 0.1
echo n1 >"$box/born"
sleep 0.1
mkdir -p "$box/home/.aws" "$box/home/.spotsup/nodes/n1" "$box/home/.spotsup/code/c1"
for file in .aws/credentials .netrc .bash_profile .spotsup/nodes/n1/etcd.json .spotsup/code/c1/train.py \
    .spotsup/environments/e1/python .ssh/id_rsa; do echo secret >"$box/home/$file"; done
touch -d 2001-01-01 "$box/home/.netrc" # as an unpacked archive has them
echo secret >"$box/shm/torch_1"
echo secret >"$box/tmp/state"
echo of the system >"$box/tmp/other"
find "$box/home" -cnewer "$box/born" -exec chown 4242:4242 {} +
chown -R 4242:4242 "$box/tmp/state" "$box/shm"
chmod 755 "$box" "$box/home"
as="setpriv --reuid 4242 --regid 4242 --clear-groups"
$as sh -c 'setsid env -i /bin/sh -c "while :; do /bin/sleep 1; done" >/dev/null 2>&1 &'
$as ipcmk -M 1024 >/dev/null
[ "$(ps -o pid= -u 4242 | wc -l)" -ge 1 ]
status=0
SUDO_USER=trainee /bin/sh "$box/script" || status=$?
echo "status $status"
echo "processes $(ps -o pid= -u 4242 | wc -l)"
echo "segments $(ipcs -m | grep -c 0x || :)"
(cd "$box" && find home tmp shm -type f | sort)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may have namespaces of its own")
def test_nothing_of_a_job_is_left_but_what_the_next_one_may_use(tmp_path: Path) -> None:
    if subprocess.run([*NAMESPACES, "true"], check=False, capture_output=True).returncode or not shutil.which("ipcmk"):
        pytest.skip("this computer gives no namespaces")
    script = wipe(Paths("~/.spotsup", "n1"), "~/.spotsup/environments", ()).script
    for before, after in {
        "born=/etc/spotsup/born ": f"born={tmp_path}/born ",
        "shared=/dev/shm\n": f"shared={tmp_path}/shm\n",
        "set -- /tmp /var/tmp\n": f"set -- {tmp_path}/tmp\n",
    }.items():
        assert script.count(before) == 1
        script = script.replace(before, after)
    (tmp_path / "script").write_text(script)
    done = subprocess.run(
        [*NAMESPACES, "sh", "-c", PLACE, "sh", str(tmp_path)], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "status 0",
        "processes 0",
        "segments 0",
        "home/.bashrc",
        "home/.spotsup/environments/e1/python",
        "home/.ssh/authorized_keys",
        "tmp/other",
    ], done.stderr


def test_the_agent_and_all_that_descends_from_it_end_and_its_folder_goes(tmp_path: Path) -> None:
    root = tmp_path / "root"
    own, kept = root / "nodes" / "n1", root / "nodes" / "n2"
    for folder in (own / "run", own / "log", kept):
        folder.mkdir(parents=True)
    (own / "etcd.json").write_text("secret")
    environ = {**os.environ, "SPOTSUP_AGENT_FOLDER": str(own)}
    # It has left its process group and its parent, as a background process of a job may.
    left = subprocess.Popen(["sh", "-c", "setsid sleep 300 & echo $!"], env=environ, stdout=subprocess.PIPE, text=True)
    assert left.stdout is not None
    pid = int(left.stdout.readline())
    left.wait()
    left.stdout.close()
    script = fill(
        "cleaning/end.sh",
        own=str(own),
        end_container=str(own / "end-container"),
        kill_tenths=50,
        root=str(root),
        home="false",
    )
    for _ in range(2):  # again after any failure
        subprocess.run(["sh", "-c", script], check=True, timeout=30)
    assert not own.exists()
    assert kept.exists()
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().rpartition(") ")[2].startswith("Z")
