"""Tables of sweeps for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.markup import escape

from supervisor.cli.happenings import dollars
from supervisor.cli.show import console_of, counted, state_text, table_of


def show_sweeps(sweeps: Sequence[dict[str, Any]]) -> None:
    """`spotsupctl sweep list`."""
    if not sweeps:
        console_of().print("no sweeps; `spotsupctl submit JOB.yaml --sweep lr=0.1,0.01` begins one")
        return
    table = table_of("SWEEP", "STATE", "JOBS", "ENDED", "AT A TIME", "BEST", "COST")
    for each in sweeps:
        ended = sum(member["state"] in ("succeeded", "failed", "cancelled") for member in each["members"])
        numbers = (str(len(each["members"])), str(ended), str(each["parallel"]))
        table.add_row(each["name"], state_text(each["state"]), *numbers, each["best"] or "-", dollars(each["usd"]))
    console_of().print(table)


def show_sweep(sweep: dict[str, Any]) -> None:
    """`spotsupctl sweep show`: those with the best score first, then those that have none yet."""
    console = console_of()
    members = sweep["members"]
    states = {
        state: sum(each["state"] == state for each in members) for state in dict.fromkeys(m["state"] for m in members)
    }
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    console.print(
        f"[bold]{sweep['name']}[/bold]  {state_text(sweep['state'])}  {counted(len(members), 'job')}, "
        f"{sweep['parallel']} at a time: {counts}   cost {dollars(sweep['usd'])}"
    )
    if sweep["problem"]:
        console.print(f"[red]its next job cannot begin:[/red] {escape(sweep['problem'])}")
    keys = list(members[0]["parameters"])
    by_loss, best_first = sweep["metric"] == "loss", -1.0 if sweep["mode"] == "max" else 1.0

    def rank(row: dict[str, Any]) -> float:
        score = row["loss"] if by_loss else row["value"]
        return math.inf if score is None else best_first * score

    columns = ("LOSS",) if by_loss else (escape(sweep["metric"].upper()), "LOSS")
    table = table_of("JOB", *keys, "STATE", "STEP", *columns, "COST", "")
    for each in sorted(members, key=rank):
        loss = "" if each["loss"] is None else f"{each['loss']:.4f}"
        note = "best" if each["name"] == sweep["best"] else ""
        point = [escape(str(each["parameters"][key])) for key in keys]
        scores = (loss,) if by_loss else ("" if each["value"] is None else f"{each['value']:.4g}", loss)
        table.add_row(
            each["name"],
            *point,
            state_text(each["state"]),
            str(each["step"] or ""),
            *scores,
            dollars(each["usd"]),
            note,
        )
    console.print(table)
