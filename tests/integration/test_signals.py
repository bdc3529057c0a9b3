"""Signals as events, in a process of their own: the handler is the main thread's."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The main thread is within the event's lock, as it is for moments in each wait() of the daemon's loop.
WITHIN_THE_LOCK = """
import os, sys, threading
from supervisor.runtime.signals import set_on_signals
stop, wake = threading.Event(), threading.Event()
set_on_signals(stop, wake)
with wake._cond:
    os.kill(os.getpid(), int(sys.argv[1]))
wake.wait()
print(stop.is_set())
"""


@pytest.mark.parametrize("number", [2, 15])
def test_a_signal_within_a_wait_does_not_hang_the_process(number: int) -> None:
    command = [sys.executable, "-c", WITHIN_THE_LOCK, str(number)]
    assert subprocess.run(command, capture_output=True, check=True, timeout=60, text=True).stdout == "True\n"
