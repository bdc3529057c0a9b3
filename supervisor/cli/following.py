"""What `submit --follow` prints: a line per change of state, and how fast training goes."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli.common import FOLLOW_S, is_over, job_path

if TYPE_CHECKING:
    from spotsup.transport import Transport

# Speed is that of the last steps within this time, so that a pause is forgotten soon.
WINDOW_S = 60.0
# Between two lines of progress, where there is no terminal whose last line can be written anew.
EVERY_S = 30.0


class Pace:
    """Steps per second and the time left, from a job's rows as they come. Times are the nodes' own."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, float | None]] = deque()
        self._round = 0

    def add(self, job: Mapping[str, Any]) -> None:
        """Take up a row of `/v1/jobs/NAME`."""
        at = job["progress_at"]
        if at is None:
            return
        if job["progress_round"] != self._round or (self._seen and job["step"] < self._seen[-1][1]):
            self._seen.clear()  # a pause between two rounds is no slow step
            self._round = job["progress_round"]
        if not self._seen or at > self._seen[-1][0]:
            self._seen.append((at, job["step"], job["done_fraction"]))
        while len(self._seen) > 2 and self._seen[0][0] < at - WINDOW_S:
            self._seen.popleft()

    @property
    def steps_per_s(self) -> float | None:
        """None before two reports of one round."""
        if len(self._seen) < 2:
            return None
        (first_at, first, _), (last_at, last, _) = self._seen[0], self._seen[-1]
        return (last - first) / (last_at - first_at)

    @property
    def left_s(self) -> float | None:
        """Until all is done, at the speed of now. None where the program does not say how much there is."""
        known = [(at, fraction) for at, _, fraction in self._seen if fraction is not None]
        if len(known) < 2 or known[-1][1] <= known[0][1]:
            return None
        (first_at, first), (last_at, last) = known[0], known[-1]
        return (1.0 - last) * (last_at - first_at) / (last - first)


def progress_text(job: Mapping[str, Any], pace: Pace) -> str:
    """`step 1200, 3.4 per second, loss 0.1234, 62 % done, 3m05s left`; "" before the first report."""
    from supervisor.cli.durations import duration

    if job["progress_at"] is None:
        return ""
    parts = [f"step {job['step']}"] if job["step"] else []
    speed = pace.steps_per_s
    if speed:
        parts.append(f"{speed:.3g} per second" if speed >= 0.1 else f"{1 / speed:.3g} s each")
    if job["loss"] is not None:
        parts.append(f"loss {job['loss']:.4f}")
    if job["done_fraction"] is not None:
        parts.append(f"{job['done_fraction']:.0%} done{' ' + job['progress_text'] if job['progress_text'] else ''}")
    if (left := pace.left_s) is not None and not job["ended_at"]:
        parts.append(f"{duration(left)} left")
    return ", ".join(parts)


def follow(daemon: Transport, name: str) -> int:
    """Print what happens until the job ends. Returns the exit code: 0 if it succeeded. Ctrl-C leaves it running."""
    try:
        return 0 if _wait_for_end(daemon, name) == "succeeded" else 1
    except KeyboardInterrupt:
        click.echo(
            f"spotsupctl: {name} keeps running; `spotsupctl cancel {name}` ends it, `spotsupctl logs {name} -f` shows "
            "its output",
            err=True,
        )
        return 1


def _wait_for_end(daemon: Transport, name: str) -> str:
    pace, printed, due = Pace(), "", 0.0
    rewrites = sys.stderr.isatty()
    progress = ""
    while True:
        job = daemon.get(job_path(name))
        pace.add(job)
        over = is_over(job)
        newest = progress_text(job, pace)
        if (text := f"{job['state']:<9}  {job['sentence']}") != printed:
            printed = text
            _line(text, rewrites=rewrites)
        if newest != progress and (rewrites or over or time.monotonic() >= due):
            progress, due = newest, time.monotonic() + EVERY_S
            if rewrites and not over:
                click.echo(f"\r\033[K{newest}", err=True, nl=False)
            else:
                _line(newest, rewrites=rewrites)
        if over:
            return str(job["state"])
        time.sleep(FOLLOW_S)


def _line(text: str, *, rewrites: bool) -> None:
    click.echo(f"{chr(13) + chr(27) + '[K' if rewrites else ''}{time.strftime('%H:%M:%S')}  {text}", err=True)
