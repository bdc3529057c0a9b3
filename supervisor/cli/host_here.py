"""This computer as a host, for `spotsupd init`: what it must have, and the units that it gets."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervisor.installation.layout import Programs

# The units hide these from what they start: ProtectHome, PrivateTmp.
HIDDEN = tuple(Path(each) for each in ("/home", "/root", "/run/user", "/tmp", "/var/tmp"))  # noqa: S108 - compared only


def check_host(programs: Programs) -> None:
    """Say what cannot work before anything is made. Raises StartError."""
    import shutil

    from supervisor.errors import StartError

    if not programs.spotsupd.exists():
        raise StartError(f"there is no {programs.spotsupd}: install spotsup there, as docs/install.md says")
    for path in (programs.spotsupd, Path(sys.executable).resolve()):
        if any(path.is_relative_to(hidden) for hidden in HIDDEN):
            raise StartError(
                f"the unit cannot start {path}: it sees nothing below {', '.join(map(str, HIDDEN))}. Install spotsup "
                "elsewhere, with the system's Python; docs/install.md has the commands"
            )
    if not shutil.which("useradd", path="/usr/sbin:/usr/bin:/sbin:/bin"):
        raise StartError("there is no useradd on this computer: `apt-get install passwd`, then repeat")


def units() -> dict[str, str]:
    """Return the units' texts: of a clone, or of the installed wheel."""
    from supervisor.errors import StartError

    places = (Path(__file__).parents[2] / "systemd", Path(sys.prefix) / "share" / "spotsup" / "systemd")
    for folder in places:
        if (folder / "spotsupd.service").is_file():
            return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    raise StartError(f"the units are neither in {places[0]} nor in {places[1]}: install spotsup again")
