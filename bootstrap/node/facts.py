"""The node's own: interpreter, code, trainer, agent, and room on the disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bootstrap.model import Paths, Setup, shell_path
from bootstrap.templates import fill

# In the environment of the agent and of all that descends from it: how a pid is known to be ours though pids are
# used again, and how stragglers are found.
AGENT_FOLDER_VARIABLE = "SPOTSUP_AGENT_FOLDER"
AGENT_KEY_VARIABLE = "SPOTSUP_AGENT_KEY"


@dataclass(frozen=True, slots=True)
class AgentFact:
    """An agent that runs for this node. `key`: which configuration it was started with."""

    pid: int
    key: str


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
printf '{"user":%s,"home":%s,"boot_id":%s,"free_mb":%s,"python":%s,"python_version":[%s],"torch":%s,' \
    "$(text "$(id -un)")" "$(text "$home")" "$(text "$(cat /proc/sys/kernel/random/boot_id)")" \
    "$free_mb" "$(text "$python")" "$version" "${torch:-false}"
printf '"codes":[%s],"trainers":[%s],"prepared":[%s],"agent":%s}\n' \
    "$(names "$root/code")" "$(names "$root/trainer")" "$(names "$root/prepared")" "$agent"
"""


def node_script(setup: Setup) -> str:
    """Prints one JSON object."""
    values = {
        "root": shell_path(setup.root),
        "own": shell_path(Paths(setup.root, setup.node).own),
        "python": shell_path(setup.python),
        "folder_variable": AGENT_FOLDER_VARIABLE,
        "key_variable": AGENT_KEY_VARIABLE,
    }
    return fill(_SCRIPT, **values)


def node_facts(value: Any) -> dict[str, Any]:
    """The fields of Facts that this section knows. Raises ValueError, KeyError, TypeError."""
    agent = value["agent"]
    return {
        "user": str(value["user"]),
        "home": str(value["home"]),
        "boot_id": str(value["boot_id"]),
        "free_mb": int(value["free_mb"]),
        "python": str(value["python"]),
        "python_version": tuple(int(part) for part in value["python_version"]),
        "torch": bool(value["torch"]),
        "codes": frozenset(value["codes"]),
        "trainers": frozenset(value["trainers"]),
        "prepared": frozenset(value["prepared"]),
        "agent": AgentFact(int(agent["pid"]), str(agent["key"])) if agent else None,
    }
