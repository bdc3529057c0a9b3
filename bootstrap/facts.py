"""What is so on a machine: one small POSIX sh script prints it as JSON, in one round trip, changing nothing."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from bootstrap.model import Paths, Setup, shell_path

# A login shell may print anything before us (sshd has bash read .bashrc), so our line says that it is ours.
PREFIX = "spotsup-facts "

# In the environment of the agent and of all that descends from it: how a pid is known to be ours though pids are
# used again, and how stragglers are found.
AGENT_FOLDER_VARIABLE = "SPOTSUP_AGENT_FOLDER"
AGENT_KEY_VARIABLE = "SPOTSUP_AGENT_KEY"

FACTS_TIMEOUT_S = 60.0  # importlib.util.find_spec on a cold network disk takes its time


class FactsError(ValueError):
    """The machine's answer is not what the script prints."""


@dataclass(frozen=True, slots=True)
class AgentFact:
    """An agent that runs for this node. `key`: which configuration it was started with."""

    pid: int
    key: str


@dataclass(frozen=True, slots=True)
class Facts:
    """A machine as it is. `codes`, `trainers`, `prepared`: names of what is complete below the root.

    `python`: the interpreter's absolute path, "" where there is none, or where it does not run.
    `free_mb`: on the root's file system.
    """

    user: str
    home: str
    boot_id: str
    free_mb: int
    python: str = ""
    python_version: tuple[int, ...] = ()
    torch: bool = False
    codes: frozenset[str] = frozenset()
    trainers: frozenset[str] = frozenset()
    prepared: frozenset[str] = frozenset()
    agent: AgentFact | None = None


# Names we list are ours: hex digits. Anything else in there (a temporary folder) is not complete, or not ours.
_SCRIPT = r"""
text() { printf '"%s"' "$(printf %s "$1" | sed 's/[\\"]/\\&/g')"; }
names() {
    ( cd "$1" 2>/dev/null || exit 0
    between=
    for name in *; do
        case $name in *[!0-9a-f]*) continue ;; esac
        printf '%s"%s"' "$between" "$name"
        between=,
    done )
}
cd /
home=$HOME root=@root@ own=@own@
python=$(command -v @python@ 2>/dev/null) || python=
version= torch=false
if [ -n "$python" ]; then
    said=$("$python" -c 'import sys, importlib.util as util
print(*sys.version_info[:3], sep=",", end=" ")
print("false" if util.find_spec("torch") is None else "true")' 2>/dev/null) || python= said=
    version=${said% *} torch=${said#* }
fi
agent=null
if read -r pid <"$own/agent.pid"; then
    case $pid in *[!0-9]*) pid=0 ;; esac
    variables=$(tr '\0' '\n' <"/proc/$pid/environ") || variables=
    if printf '%s\n' "$variables" | grep -qxF "@folder_variable@=$own"; then
        key=$(printf '%s\n' "$variables" | sed -n 's/^@key_variable@=//p')
        agent="{\"pid\":$pid,\"key\":$(text "$key")}"
    fi
fi 2>/dev/null
place=$root
while [ ! -d "$place" ]; do place=$(dirname "$place"); done
free_mb=$(($(stat -f -c '%a * %S' "$place") / 1048576))
printf '\n%s{"user":%s,"home":%s,"boot_id":%s,"free_mb":%s,"python":%s,"python_version":[%s],"torch":%s,' \
    '@prefix@' "$(text "$(id -un)")" "$(text "$home")" "$(text "$(cat /proc/sys/kernel/random/boot_id)")" \
    "$free_mb" "$(text "$python")" "$version" "${torch:-false}"
printf '"codes":[%s],"trainers":[%s],"prepared":[%s],"agent":%s}\n' \
    "$(names "$root/code")" "$(names "$root/trainer")" "$(names "$root/prepared")" "$agent"
"""


def facts_script(setup: Setup) -> str:
    """The script, for sh."""
    values = {
        "root": shell_path(setup.root),
        "own": shell_path(Paths(setup.root, setup.node).own),
        "python": shell_path(setup.python),
        "folder_variable": AGENT_FOLDER_VARIABLE,
        "key_variable": AGENT_KEY_VARIABLE,
        "prefix": PREFIX,
    }
    return re.sub(r"@(\w+)@", lambda found: values[found[1]], _SCRIPT)


def parse_facts(stdout: str) -> Facts:
    """The facts in what the script printed. Raises FactsError."""
    lines = [line for line in stdout.splitlines() if line.startswith(PREFIX)]
    if not lines:
        raise FactsError(f"no facts in the machine's answer, which begins {stdout[:200]!r}")
    try:
        value = json.loads(lines[-1].removeprefix(PREFIX))
        agent = value.pop("agent")
        return Facts(
            user=str(value["user"]),
            home=str(value["home"]),
            boot_id=str(value["boot_id"]),
            free_mb=int(value["free_mb"]),
            python=str(value["python"]),
            python_version=tuple(int(part) for part in value["python_version"]),
            torch=bool(value["torch"]),
            codes=frozenset(value["codes"]),
            trainers=frozenset(value["trainers"]),
            prepared=frozenset(value["prepared"]),
            agent=AgentFact(int(agent["pid"]), str(agent["key"])) if agent else None,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise FactsError(f"the machine's facts cannot be read ({error}): {lines[-1][:300]!r}") from error
