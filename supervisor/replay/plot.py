"""A picture of a replay: nodes by zone, what the zones offered, prices, pauses. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.errors import UsageError
from supervisor.replay.ledger import HOUR_S

if TYPE_CHECKING:
    from supervisor.replay.run import Replay

MAX_ZONES_NAMED = 12


def draw(replay: Replay, path: Path) -> None:
    """Write the picture, in the format that the file's name says. Raises UsageError without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise UsageError("--plot needs matplotlib: pip install 'spotsup[plots]'") from error
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    recording = replay.recording
    prices = recording.prices
    figure, axes = plt.subplots(3 if prices else 2, 1, sharex=True, figsize=(12, 7), squeeze=False)
    nodes, offered, *rest = (row[0] for row in axes)
    palette = plt.get_cmap("tab20")
    colors = {zone: palette(number % 20) for number, zone in enumerate(recording.zones)}
    _nodes(nodes, replay, colors)
    _steps(offered, recording.capacity, recording.zones, recording.end_s, colors)
    offered.set_ylabel("machines offered")
    if prices:
        _steps(rest[0], prices, recording.zones, recording.end_s, colors)
        rest[0].set_ylabel("USD per hour")
    axes[-1][0].set_xlabel("hours")
    axes[0][0].set_title(f"{replay.spec.name} on {recording.name}: {len(replay.rounds)} rounds", loc="left")
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write the picture {path}: {error}") from error
    finally:
        plt.close(figure)


def _nodes(axis: Any, replay: Replay, colors: dict[str, Any]) -> None:
    """Each zone's nodes that train, as areas; each change is a pause, a mark at the bottom."""
    named: set[str] = set()
    for start, end, zone, count in replay.stretches():
        label = zone if zone not in named and len(named) < MAX_ZONES_NAMED else None
        named.add(zone)
        axis.fill_between([start / HOUR_S, end / HOUR_S], [count, count], color=colors[zone], linewidth=0, label=label)
    changes = [second / HOUR_S for second, _ in replay.rounds[1:]]
    axis.plot(changes, [0.0] * len(changes), "|", color="black", markersize=8)
    axis.set_ylabel("nodes that train")
    if named:
        axis.figure.legend(loc="upper right", fontsize="small", ncols=6)


def _steps(axis: Any, series: Any, zones: tuple[str, ...], end_s: float, colors: dict[str, Any]) -> None:
    hours = [second / HOUR_S for second in (*series.seconds, end_s)]
    for number, zone in enumerate(zones):
        values = [row[number] for row in (*series.rows, series.rows[-1])]
        axis.step(hours, values, where="post", color=colors[zone], linewidth=1, label=zone)
