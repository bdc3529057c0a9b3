"""A picture of replays: each job's nodes by zone and what happened to them, what zones offered, and prices. Needs
matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.errors import UsageError
from supervisor.replay.ledger import HOUR_S

if TYPE_CHECKING:
    from supervisor.replay.run import Replay

MAX_ZONES_NAMED = 12
MAX_JOBS = 24
HEIGHT_IN, JOB_HEIGHT_IN = 2.4, 1.4  # of a row; of a job's, where there are several


def draw(replays: Sequence[Replay], path: Path) -> None:
    """Write the picture of jobs that shared a recording, in the format that the file's name says. Raises UsageError for
    too many, and without matplotlib."""
    if len(replays) > MAX_JOBS:
        raise UsageError(f"--plot draws at most {MAX_JOBS} jobs, not {len(replays)}")
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise UsageError("--plot needs matplotlib: pip install 'spotsup[plots]'") from error
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    recording = replays[0].recording
    prices = recording.prices
    heights = [HEIGHT_IN if len(replays) == 1 else JOB_HEIGHT_IN] * len(replays) + [HEIGHT_IN] * (2 if prices else 1)
    figure, axes = plt.subplots(
        len(heights), 1, sharex=True, figsize=(12, sum(heights)), squeeze=False, height_ratios=heights
    )
    *jobs, offered = (row[0] for row in axes[: len(replays) + 1])
    palette = plt.get_cmap("tab20")
    colors = {zone: palette(number % 20) for number, zone in enumerate(recording.zones)}
    for axis, replay in zip(jobs, replays, strict=True):
        _nodes(axis, replay, colors)
        axis.set_title(f"{replay.spec.name} on {recording.name}: {len(replay.rounds)} rounds", loc="left")
    _legend(figure, jobs)
    _steps(offered, recording.capacity, recording.zones, recording.end_s, colors)
    offered.set_ylabel("machines offered")
    if prices:
        _steps(axes[-1][0], prices, recording.zones, recording.end_s, colors)
        axes[-1][0].set_ylabel("USD per hour")
    axes[-1][0].set_xlabel("hours")
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write the picture {path}: {error}") from error
    finally:
        plt.close(figure)


def _nodes(axis: Any, replay: Replay, colors: dict[str, Any]) -> None:
    """Each zone's nodes that train, as areas; below them a line of marks for each kind of event."""
    named: set[str] = set()
    for start, end, zone, count in replay.stretches():
        label = zone if zone not in named and len(named) < MAX_ZONES_NAMED else None
        named.add(zone)
        axis.fill_between([start / HOUR_S, end / HOUR_S], [count, count], color=colors[zone], linewidth=0, label=label)
    step = max(1.0, replay.spec.nodes.desired / 12)
    for number, (event, color, seconds) in enumerate(_events(replay), 1):
        hours = [second / HOUR_S for second in seconds]
        axis.plot(hours, [-number * step] * len(hours), "|", color=color, markersize=6, label=event)
    axis.set_ylabel("nodes that train")


def _events(replay: Replay) -> list[tuple[str, str, Sequence[float]]]:
    """Kinds of events, each with a colour and its times in seconds."""
    taken = [(rental, rental.taken_s) for rental in replay.machines() if rental.taken_s is not None]
    return [
        ("pause", "black", [second for second, _ in replay.rounds[1:]]),
        ("notice", "tab:orange", [max(each.start_s, at - replay.costs.notice_s) for each, at in taken]),
        ("loss", "tab:red", [min(each.end_s, at) for each, at in taken]),
        ("move", "tab:blue", replay.moved()),
        ("refusal", "tab:gray", replay.refused()),
    ]


def _legend(figure: Any, axes: Sequence[Any]) -> None:
    """One for all, with each zone and event once."""
    found: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        found |= {label: handle for handle, label in zip(handles, labels, strict=True) if label not in found}
    figure.legend(found.values(), found.keys(), loc="upper right", fontsize="small", ncols=6)


def _steps(axis: Any, series: Any, zones: tuple[str, ...], end_s: float, colors: dict[str, Any]) -> None:
    hours = [second / HOUR_S for second in (*series.seconds, end_s)]
    for number, zone in enumerate(zones):
        values = [row[number] for row in (*series.rows, series.rows[-1])]
        axis.step(hours, values, where="post", color=colors[zone], linewidth=1, label=zone)
