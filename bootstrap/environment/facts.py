"""Environments that are complete in the cache, and what could build one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bootstrap.model import Setup, shell_path
from bootstrap.templates import fill


@dataclass(frozen=True, slots=True)
class Environments:
    """`complete`: names in the cache folder. `uv`: its absolute path, "module" for `python -m uv`, or "" for none.

    `machine`: the processor's kind, such as x86_64. Nothing is looked for where the job brings no lock.
    """

    complete: frozenset[str] = frozenset()
    uv: str = ""
    machine: str = ""


_SCRIPT = r"""
python=$(command -v @python@ 2>/dev/null) || python=
uv=$(command -v uv 2>/dev/null) || uv=$HOME/.local/bin/uv
if [ ! -x "$uv" ]; then
    uv=
    if [ -n "$python" ] && "$python" -m uv --version >/dev/null 2>&1; then
        uv=module
    fi
fi
printf '{"complete":['
cd @cache@ 2>/dev/null && {
    between=
    for name in *; do
        case $name in *[!0-9a-f]*) continue ;; esac
        [ -x "$name/bin/python" ] || continue
        printf '%s"%s"' "$between" "$name"
        between=,
    done
}
printf '],"uv":"%s","machine":"%s"}\n' "$(printf %s "$uv" | sed 's/[\\"]/\\&/g')" "$(uname -m)"
"""


def environments_script(setup: Setup) -> str:
    """Prints one JSON object; an empty one where no environment is to be built."""
    if setup.lock is None:
        return "echo '{}'\n"
    values = {"python": shell_path(setup.python), "cache": shell_path(setup.cache_folder)}
    return fill(_SCRIPT, **values)


def environments_facts(value: Any) -> dict[str, Any]:
    """The field of Facts that this section knows. Raises ValueError, KeyError, TypeError."""
    complete = frozenset(map(str, value.get("complete", ())))
    return {"environments": Environments(complete, str(value.get("uv", "")), str(value.get("machine", "")))}
