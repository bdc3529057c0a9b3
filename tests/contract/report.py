"""The report of a run on an account: build/contract-real/CLOUD.md and .json."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.contract.assumptions import Assumption
from tests.contract.evidence import Evidence
from tests.contract.verdicts import Judged, Verdict
from tests.support.console import write_result


@dataclass(frozen=True, slots=True)
class Result:
    """How a run went, beside its evidence. Times are UNIX seconds, money in US dollars."""

    name: str
    cloud: str
    began: float
    ended: float
    budget_usd: float
    estimate_usd: float
    machine_type: str
    region: str
    price: str
    # What the job's daemon counted, and the most that the probe may have cost.
    job_usd: float | None
    probe_usd: float
    # "" where the job trained, lost a node, went on with another, and succeeded.
    problem: str
    # What the sweep could not end.
    left: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """The job succeeded, and nothing is left."""
        return not self.problem and not self.left


def write(
    folder: Path, result: Result, evidence: Evidence, judged: Mapping[str, Judged], assumptions: Sequence[Assumption]
) -> tuple[Path, Path]:
    """Both files; the paths."""
    markdown, data = folder / f"{result.cloud}.md", folder / f"{result.cloud}.json"
    folder.mkdir(parents=True, exist_ok=True)
    markdown.write_text(_markdown(result, evidence, judged, assumptions))
    write_result(data, _data(result, evidence, judged, assumptions))
    return markdown, data


def _data(
    result: Result, evidence: Evidence, judged: Mapping[str, Judged], assumptions: Sequence[Assumption]
) -> dict[str, Any]:
    texts = {each.number: each.text for each in assumptions}
    return {
        **asdict(result),
        "ok": result.ok,
        "assumptions": [
            {"number": number, "text": texts[number], "verdict": each.verdict, "evidence": each.evidence}
            for number, each in judged.items()
        ],
        "seen": [asdict(each) for each in evidence.seen],
    }


def _markdown(
    result: Result, evidence: Evidence, judged: Mapping[str, Judged], assumptions: Sequence[Assumption]
) -> str:
    texts = {each.number: each.text for each in assumptions}
    counted = Counter(each.verdict for each in judged.values())
    spent = "unknown" if result.job_usd is None else f"${result.job_usd:.4f}"
    began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(result.began))
    lines = [
        f"# {result.cloud}: what held of our assumptions",
        "",
        f"- Run `{result.name}`, begun {began}, {result.ended - result.began:.0f} s.",
        f"- Machines: {result.machine_type} (spot) in {result.region}; bound by {result.price}.",
        f"- Money: at most ${result.estimate_usd:.2f} was estimated before, of ${result.budget_usd:.2f}.",
        f"- The job's daemon counted {spent}, without disks; the probe cost at most ${result.probe_usd:.4f}.",
        f"- The job: {result.problem or 'trained on two nodes, lost one, went on with another, and succeeded'}.",
        f"- Left over: {', '.join(result.left) or 'nothing'}.",
        "- " + ", ".join(f"{counted[verdict]} {verdict}" for verdict in Verdict) + ".",
        "",
        "| # | assumption | verdict | what the API answered |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {number} | {texts[number]} | {'**did not hold**' if each.verdict is Verdict.FAILED else each.verdict} "
        f"| {_cell(each.evidence)} |"
        for number, each in judged.items()
    ]
    lines += ["", "## In order", "", "| after | what | answer |", "|---|---|---|"]
    lines += [
        f"| {each.at - result.began:.1f} s | {each.step} ({each.took_s:.1f} s) | {_cell(each.answer)} |"
        for each in evidence.seen
    ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:400]
