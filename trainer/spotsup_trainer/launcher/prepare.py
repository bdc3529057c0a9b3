"""Prepares a node before it is in a round: the process that its workers are forked from gets the program's imports.

All nodes of a job train only as soon as the last one has imported what it needs; a newcomer does it while the others
train on. Nothing here may keep a node from joining: what takes too long, or must not be done before a fork, is left to
the program.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, takewhile
from pathlib import Path

from spotsup_trainer.launcher import forkserver
from spotsup_trainer.launcher.program_imports import Import, imports_of
from spotsup_trainer.timing import MAX_PREPARE_S

MAX_LEFT_OUT = 8  # imports that are tried and left out, each at the price of a new start; then all behind the first

log = logging.getLogger("spotsup_trainer")


class PreloadError(ValueError):
    """SPOTSUP_PRELOAD names something that cannot be a module."""


def wanted_imports(program: str, *, is_module: bool, environ: Mapping[str, str]) -> tuple[Import, ...]:
    """Return what to import before the first worker starts: the modules in SPOTSUP_PRELOAD, separated by commas; where
    it is not set, what the program's own text imports first. Raises PreloadError."""
    named = environ.get("SPOTSUP_PRELOAD")
    if named is None:
        return imports_of(program, Path.cwd(), is_module=is_module)
    modules = [each.strip() for each in named.split(",") if each.strip()]
    for module in modules:
        if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", module):
            raise PreloadError(f"SPOTSUP_PRELOAD has {module!r}; it is a list of modules, separated by commas")
    return tuple(Import(module) for module in modules)


def start_prepared(
    imports: Sequence[Import],
    argv: Sequence[str],
    known: Mapping[str, str],
    importing: Callable[[str], None],
    limit_s: float = MAX_PREPARE_S,
) -> tuple[forkserver.WorkerServer, dict[str, str]]:
    """Return a process that can start workers, with these imports done, and those that were left out: module -> why.

    `known`: left out from the start. `importing` is called with the name of each module, before. Workers leave through
    this call, as through `forkserver.start`.
    """
    began, left_out = time.monotonic(), dict(known)
    imports = _packages_first(imports)
    for attempt in range(MAX_LEFT_OUT + 1):
        wanted = [each for each in imports if not _is_left_out(each.module, left_out)]
        if attempt == MAX_LEFT_OUT:
            wanted = list(takewhile(lambda each: not _is_left_out(each.module, left_out), imports))
        if not wanted:
            break
        server = forkserver.start(wanted, argv)
        try:
            found = server.prepared(max(0.0, began + limit_s - time.monotonic()), importing)
        except TimeoutError as error:
            log.warning("importing %s has not ended within %.0f s: workers import for themselves", error, limit_s)
            server.close(at_once=True)
            break
        if found is None:
            log.info("imported before the first round, in %.1f s: %s", time.monotonic() - began, _listed(wanted))
            return server, left_out
        module, why = found
        server.close(at_once=True)
        left_out[module] = why
        log.info("%s is left to the workers to import: %s", module, why)
    return forkserver.start(), left_out


def _packages_first(imports: Sequence[Import]) -> list[Import]:
    """Return the imports, each behind the packages that it is in: what one of these does is then known by its name, and
    is not tried again for each of its modules."""
    found: dict[Import, None] = {}
    for each in imports:
        found |= dict.fromkeys(Import(package) for package in _named(each.module)[:-1])
        found[each] = None
    return list(found)


def _is_left_out(module: str, left_out: Mapping[str, str]) -> bool:
    """Return whether a module, or a package that it is in, is left out."""
    return any(name in left_out for name in _named(module))


def _named(module: str) -> list[str]:
    """Return a module behind the packages that it is in: `a`, `a.b`, `a.b.c`."""
    return list(accumulate(module.split("."), "{}.{}".format))


def _listed(imports: Sequence[Import]) -> str:
    """Their packages."""
    return ", ".join(dict.fromkeys(each.module.partition(".")[0] for each in imports))
