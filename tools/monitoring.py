"""`make monitoring` checks monitoring/alerts.yml with promtool. Where there is none, Debian's goes into .tools."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tools.setup.apt import Apt
from tools.setup.errors import SetupError
from tools.stack import ROOT

RULES = ROOT / "monitoring" / "alerts.yml"
PACKAGE = "prometheus"
_UNPACKED = Path(".tools") / "promtool"


def find_promtool(clone: Path = ROOT) -> str | None:
    """On the PATH, or unpacked earlier."""
    unpacked = clone / _UNPACKED / "usr" / "bin" / "promtool"
    return shutil.which("promtool") or (str(unpacked) if unpacked.exists() else None)


def unpack_promtool(clone: Path = ROOT) -> str:
    """Bring it into the clone; nothing is installed. Raises SetupError."""
    (clone / ".tools").mkdir(exist_ok=True)
    try:
        Apt(clone / ".tools").unpack([PACKAGE], clone / _UNPACKED)
    except (SetupError, OSError) as error:
        raise SetupError(
            f"no promtool, and it cannot be had: {error}\nsudo apt-get install {PACKAGE} brings it"
        ) from error
    found = find_promtool(clone)
    if found is None:
        raise SetupError(f"Debian's package {PACKAGE} brought no promtool")
    return found


def main() -> int:
    """Return the status of promtool; 1 without one."""
    promtool = find_promtool()
    if promtool is None:
        print("monitoring: no promtool here: unpacking Debian's package prometheus into .tools/promtool", flush=True)
        try:
            promtool = unpack_promtool()
        except SetupError as error:
            print(f"monitoring: {error}", file=sys.stderr)
            return 1
    return subprocess.run([promtool, "check", "rules", str(RULES)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
