"""Plots of a job. Imports matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spotsup.errors import UsageError


def figure_of(name: str, report: Mapping[str, Any]) -> Any:
    """Loss, nodes and dollars over hours, and the pauses. Raises UsageError without matplotlib, or before any step."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("plot() needs matplotlib: `pip install matplotlib`") from error
    points = report["points"]
    if not points:
        raise UsageError(f"{name} has made no step yet: there is nothing to plot until then")
    begin = points[0]["at"]
    hours = [(point["at"] - begin) / 3600 for point in points]
    figure = Figure(figsize=(8, 6), layout="constrained")
    axes = figure.subplots(3, 1, sharex=True)
    for axis, key, label in zip(axes, ("loss", "nodes", "usd"), ("loss", "nodes", "US dollars")):
        values = [float("nan") if point[key] is None else point[key] for point in points]
        axis.plot(hours, values, drawstyle="steps-post" if key == "nodes" else "default")
        axis.set_ylabel(label)
        for pause in report["pauses"]:
            if pause["seconds"]:
                at = (pause["at"] - begin) / 3600
                axis.axvspan(at, at + pause["seconds"] / 3600, color="0.85", linewidth=0)
    axes[0].set_title(name)
    axes[-1].set_xlabel("hours")
    return figure
