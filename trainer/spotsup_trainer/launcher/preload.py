"""Imports what a program will import, in the process that its workers are forked from, and says what must not be there.

A module may be imported before a fork only if a worker cannot tell the difference. It can where the module starts
threads or processes, opens a GPU, reads at import which rank this is, or seeds random numbers: Python seeds its own
generator anew in each forked process, and we numpy's, else all workers would draw the same.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import re
import signal
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from spotsup_trainer.launcher import processes
from spotsup_trainer.launcher.program_imports import Import

# What torchrun gives each worker: none of it is known before the fork.
_OF_WORKERS = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+|OMP_NUM_THREADS"
    r"|SPOTSUP_(ROUND|NODE_ADDRS|\w+_FILE)"
)
_THREAD_END_S = 0.2
# The thread that gives freed memory back, of pyarrow's jemalloc for one. Before a fork jemalloc takes the locks that it
# may hold, and a forked process is as one with `background_thread:false` (background_thread_postfork_child in its
# background_thread.c): it keeps some of what it has freed until it uses that again.
_OF_JEMALLOC = "jemalloc_bg_thd"


def problem_of(wanted: Import) -> str:
    """Import it in this process; why it must not be there before a fork, "" where it may.

    Whatever it raises is a problem, too: the program itself will raise it again where people see it.
    """
    seeded_before = _seeded()
    try:
        with _watched_environ() as asked:
            module = importlib.import_module(wanted.module)
            for name in wanted.names:
                _load(module, name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - also SystemExit: a program may end at an import
        return f"it raised {type(error).__name__}: {error}"[:300]
    if asked:
        return f"it reads {min(asked)} when it is imported, which differs from worker to worker"
    if _seeded() != seeded_before:
        return "it seeds random numbers when it is imported, which a fork loses"
    if gpus := _open_gpus():
        return f"it opened {gpus}"
    if processes.children(os.getpid()):
        return "it started a process"
    if left := _threads_after_fork():
        return f"it started {left} thread{'' if left == 1 else 's'}, which a worker would not have"
    return ""


def _load(module: object, name: str) -> None:
    """`from module import name`. Packages that load lazily do it here."""
    if not hasattr(module, name):
        importlib.import_module(f"{module.__name__}.{name}")  # type: ignore[attr-defined]


def _seeded() -> tuple[object, bytes]:
    """Return what seeding changes, of Python's generator and of numpy's; torch's is the same after a fork."""
    # The first number after seeding changes as much; the next 600 do not.
    random.random()  # noqa: S311  # no secret
    in_numpy = b""
    with contextlib.suppress(Exception):  # there is none, or one that is broken: torch goes on without
        numpy_random = importlib.import_module("numpy.random")  # torch has numpy, which loads this when it is used
        numpy_random.random()
        in_numpy = numpy_random.get_state()[1].tobytes()
    return random.getstate()[1][:-1], in_numpy


class _Watched(os._Environ):  # type: ignore[type-arg]  # noqa: SLF001 - os.environ stays the same object
    """os.environ, while it is watched: what was asked for."""

    asked: set[str] = set()  # noqa: RUF012 - of the process, as os.environ itself

    def __getitem__(self, key: str) -> str:
        try:
            value: str = super().__getitem__(key)
        except KeyError:
            _note(key, self.asked)
            raise
        if key != "OMP_NUM_THREADS":  # torchrun sets it only where it is not set
            _note(key, self.asked)
        return value


def _note(key: object, asked: set[str]) -> None:
    if isinstance(key, str) and _OF_WORKERS.fullmatch(key):
        asked.add(key)


@contextlib.contextmanager
def _watched_environ() -> Iterator[set[str]]:
    """Its class is changed, not the object: modules may keep it."""
    asked: set[str] = set()
    _Watched.asked = asked
    os.environ.__class__ = _Watched
    try:
        yield asked
    finally:
        os.environ.__class__ = os._Environ  # noqa: SLF001


def _open_gpus() -> str:
    """Return the first device of NVIDIA's driver that this process has open: it has touched CUDA, or NVML."""
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(descriptor.readlink())
            if target.startswith("/dev/nvidia"):
                return target
    return ""


def end_children() -> None:
    """Kill them: this process is of no use, and ends."""
    for pid in processes.children(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _threads_after_fork() -> int:
    """Return how many threads beside this one live through a fork, in the process that forks. Libraries that know of
    forks end theirs before one (OpenBLAS does), and start them again later, in both processes."""
    if _threads() == 0:
        return 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's own, that other threads exist
        pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    deadline = time.monotonic() + _THREAD_END_S
    while _threads() and time.monotonic() < deadline:
        time.sleep(0.01)  # one that has just been told to end
    return _threads()


def _threads() -> int:
    """Count the threads beside the first one that a worker would miss."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            names.append((task / "comm").read_text().rstrip("\n"))
    return len(names) - names.count(_OF_JEMALLOC) - 1


def changed_environ(before: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that imports have set."""
    return {name: value for name, value in os.environ.items() if before.get(name) != value}


def with_changes(environ: Mapping[str, str], changes: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """Return a worker's environment with what the imports had set, where it says nothing else by itself."""
    return dict(environ) | {name: value for name, value in changes.items() if environ.get(name) == before.get(name)}
