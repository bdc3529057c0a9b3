"""Ties processes to their parents (Linux), so that a killed launcher leaves no process behind."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel send SIGKILL when the parent ends. Raises SystemExit if the parent is not (or no longer)
    `parent_pid`.

    The kernel ties this to the thread that forked us, which must live as long as the parent.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # The parent may have ended before the call above: then no signal comes.
    if os.getppid() != parent_pid:
        raise SystemExit(f"spotsup: process {parent_pid}, which started this one, has ended")


def outlive_parent() -> None:
    """Take `die_with_parent` back."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of all processes below this one whose own parent ends, instead of init."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def set_process_name(name: str) -> None:
    """Set the name that ps and top show (15 characters)."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]), 0, 0, 0)
