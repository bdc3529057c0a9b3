"""An update that unattended-upgrades installs at a machine's first boot, with Debian's own programs and no network.

A repository in a folder, which says that it is Debian's for security, has a newer version of a package that the machine
has just got. Its installation lasts until bootstrap has stopped apt's timers, and a while more: so bootstrap always
meets an upgrade at work, which holds the locks of dpkg, and has to wait for it.
"""

from __future__ import annotations

import hashlib
from email.utils import formatdate
from pathlib import Path

from tools.setup.errors import SetupError, output_tail, run

PACKAGE = "stock-tool"
PLACE = "/srv/updates"
_OUTLASTS_S = 3
_MAX_S = 300

_POSTINST = f"""\
#!/bin/sh
# While an older version is replaced, and not when the first one is installed.
set -e
[ "$1" = configure ] && [ -n "$2" ] || exit 0
: >/run/stock-upgrade
left={_MAX_S * 10}
until [ "$(readlink /etc/systemd/system/apt-daily.timer)" = /dev/null ] || [ "$left" = 0 ]; do
    sleep 0.1
    left=$((left - 1))
done
sleep {_OUTLASTS_S}
"""
# As apt's own timers do at the first boot of an image that is some weeks old. Ends when the package is being upgraded.
AT_FIRST_BOOT = f"""\
dpkg -i {PLACE}/{PACKAGE}_1.deb
echo 'deb [trusted=yes] file:{PLACE} ./' >/etc/apt/sources.list.d/updates.list
apt-get -q update -o Dir::Etc::SourceList=/dev/null
systemctl start --no-block apt-daily-upgrade.service
for _ in $(seq 900); do
    [ ! -e /run/stock-upgrade ] || break
    sleep 0.2
done
"""
# What the machine says of it afterwards; as root.
LOOK = (
    f"dpkg-query -W -f '${{Status}} ${{Version}}' {PACKAGE}; echo; dpkg --audit; "
    "grep -c 'All upgrades installed' /var/log/unattended-upgrades/unattended-upgrades.log"
)
UPGRADED = "install ok installed 2\n1"


def make_updates(folder: Path) -> Path:
    """The folder for `PLACE`. Raises SetupError."""
    repository = folder / "updates"
    repository.mkdir()
    for version in ("1", "2"):
        control = folder / f"tool-{version}" / "DEBIAN"
        control.mkdir(parents=True)
        fields = {
            "Package": PACKAGE,
            "Version": version,
            "Architecture": "all",
            "Maintainer": "nobody <nobody@example.com>",
            "Description": "takes a while to upgrade",
        }
        (control / "control").write_text(_stanza(fields))
        (control / "postinst").write_text(_POSTINST)
        (control / "postinst").chmod(0o755)
        package = repository / f"{PACKAGE}_{version}.deb"
        command = ["dpkg-deb", "--root-owner-group", "--build", str(control.parent), str(package)]
        done = run(command, cwd=folder, timeout_s=60.0)
        if done.returncode != 0:
            raise SetupError(f"dpkg-deb failed: {output_tail(done)}")
    data = package.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    listed = _stanza({**fields, "Filename": f"./{package.name}", "Size": str(len(data)), "SHA256": digest}).encode()
    (repository / "Packages").write_bytes(listed)
    about = {
        "Origin": "Debian",
        "Label": "Debian-Security",
        "Suite": "stable-security",
        "Codename": "bookworm-security",
        "Date": formatdate(usegmt=True),
        "SHA256": f"\n {hashlib.sha256(listed).hexdigest()} {len(listed)} Packages",
    }
    (repository / "Release").write_text(_stanza(about))
    return repository


def _stanza(fields: dict[str, str]) -> str:
    return "".join(f"{name}: {value}\n" for name, value in fields.items())
