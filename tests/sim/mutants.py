"""`make sim-mutants`: the daemon with one of its rules removed. The simulated world must detect each.

A mutant replaces text in a module's source while that module is imported in a process of its own: the daemon has no
switch for it. Text that is missing or not unique is an error: then the rule has moved.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

from tests.mutation.imports import replace_code

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Mutant:
    """A rule, and how to remove it from a module (its dotted name)."""

    name: str
    module: str
    old: str
    new: str


MUTANTS = (
    Mutant(
        "intent-first write",
        "supervisor.runtime.loop",
        "        try:\n            revision = self._journal.commit(",
        "        for action in commit.actions:\n            self._start(action)\n"
        "        try:\n            revision = self._journal.commit(",
    ),
    Mutant(
        "fence: commits are guarded by leadership",
        "supervisor.runtime.loop",
        "self._journal.commit(commit, self._leader.guard())",
        "self._journal.commit(commit, ())",
    ),
    Mutant(
        "fence: commits are guarded by the records' revisions",
        "supervisor.journal.journal",
        '            guards.append(Compare(key, "mod", revision))\n',
        "            pass\n",
    ),
    Mutant(
        "two sightings before an orphan is ended",
        "supervisor.planner.orphans",
        "if seen.listings >= 2 and now - seen.first_at >= world.rules.orphan_grace_s",
        "if seen.listings >= 1",
    ),
    Mutant(
        "two listings without a silent machine before it is lost",
        "supervisor.planner.sync",
        "if not node.instance_id or draft.cloud.missed_listings.get(node.id, 0) < 2:",
        "if not node.instance_id or draft.cloud.missed_listings.get(node.id, 0) < 1:",
    ),
    Mutant(
        "evidence: a failed listing is none",
        "supervisor.planner.reads",
        "    if done.error:\n        volatile =",
        "    if False:\n        volatile =",
    ),
    Mutant(
        "evidence: a node with messages is not lost, whatever listings lack",
        "supervisor.planner.sync",
        "if draft.now - node.launched_at < draft.rules.consistency_s or is_heard(draft, node):",
        "if draft.now - node.launched_at < draft.rules.consistency_s:",
    ),
    Mutant(
        "evidence: a suspicion has to run out",
        "supervisor.planner.silence",
        "    if quiet_s < draft.rules.suspect_s or _unlisted(draft, node):",
        "    if _unlisted(draft, node):",
    ),
    Mutant(
        "silence: many that fall silent together are held",
        "supervisor.planner.silence",
        "    if len(everyone.since) < 2:",
        "    if everyone:",
    ),
    Mutant(
        "silence: the listing is newer than the suspicion",
        "supervisor.planner.silence",
        "    return draft.cloud.listed_at <= node.state_since",
        "    return False",
    ),
    Mutant(
        "silence: a single silent node whose steps advance is kept",
        "supervisor.planner.silence",
        "    if answer is None or answer.advances or answer.asked_at < draft.now - quiet_s:",
        "    if answer is None:",
    ),
    Mutant(
        "silence: after a hold a suspicion begins anew",
        "supervisor.planner.silence",
        "draft.elapsed_s(max(node.state_since, draft.volatile.held_at.get(node.id, 0.0)))",
        "draft.elapsed_s(node.state_since)",
    ),
    Mutant(
        "unknown is never treated as not launched",
        "supervisor.planner.outcomes",
        "            return draft.set_node(node, launch_unknown=True, retry_at=retry_at, error=outcome.message)",
        "            return _refused(draft, node, outcome.message)",
    ),
    Mutant(
        "gone only by a later listing",
        "supervisor.planner.sync",
        "    if listed_gone or unlisted or not node.instance_id:",
        "    if True:",
    ),
    Mutant(
        "stopped machines count as not ended",
        "supervisor.planner.orphans",
        "    if instance.state in {InstanceState.TERMINATED, InstanceState.UNREADABLE}:\n        return False\n",
        "    if instance.state is not InstanceState.RUNNING:\n        return False\n",
    ),
    Mutant(
        "ownership: what others have is neither ended, removed nor taken over",
        "supervisor.runtime.actor",
        "        return tuple(each for each in found if each.owner == self._owner)",
        "        return tuple(found)",
    ),
    Mutant(
        "ownership: a token finds our machine alone",
        "supervisor.runtime.actor",
        "if found is not None and found.owner != self._owner:",
        "if False:",
    ),
    Mutant(
        "a drained node has left the round before it ends",
        "supervisor.planner.release",
        "        case N.DRAINING if has_left(draft, node):",
        "        case N.DRAINING:",
    ),
    Mutant(
        "one place per job",
        "supervisor.market.offers",
        "    return not refused and constraints.in_place(offer) and constraints.affordable(offer)",
        "    return not refused and constraints.affordable(offer)",
    ),
    Mutant(
        "no more money per hour than allowed",
        "supervisor.market.offers",
        "    return not refused and constraints.in_place(offer) and constraints.affordable(offer)",
        "    return not refused and constraints.in_place(offer)",
    ),
    Mutant(
        "a zone that takes new machines is not asked again at once",
        "supervisor.planner.sync",
        "    if node.state in IN_FLIGHT_NODE_STATES and not node.bootstrapped:\n        refuse_late(",
        "    if False:\n        refuse_late(",
    ),
    Mutant(
        "a job with a limit of money takes no machine without a price",
        "supervisor.market.offers",
        "            return offer.usd_per_hour is not None or not self.needs_price",
        "            return True",
    ),
    Mutant(
        "failed replacements never end a job that has trained",
        "supervisor.planner.jobs",
        " and not has_trained(draft):",
        ":",
    ),
    Mutant(
        "a command is guarded by the record's revision",
        "supervisor.journal.journal",
        'Compare(self._job_key(record.name), "mod", view.revision)]',
        "]",
    ),
    Mutant(
        "a limit pauses a job, and does not end it",
        "supervisor.planner.limits",
        "        draft.set_job(pause_requested_at=draft.now, limit_reached=over.name)\n",
        "        draft.move_job(type(job.state).FAILED, over.name)\n",
    ),
    Mutant(
        "an ended run is kept when its name is used again",
        "supervisor.journal.journal",
        "[Put(self._past_key(name, run.job.run), dump(run))]",
        "[]",
    ),
    Mutant(
        "hours count training, not waiting",
        "supervisor.planner.limits",
        "    return not draft.job.ended and len(inside) >= draft.job.min_nodes\n",
        "    return not draft.job.ended\n",
    ),
    Mutant(
        "GPUs: a node whose GPU died is not in the next round",
        "spotsup_trainer.rendezvous.membership",
        '    gone, out = {"leaving", "stopping"}, {*waiting, *unhealthy(view)}',
        '    gone, out = {"leaving", "stopping"}, {*waiting}',
    ),
    Mutant(
        "GPUs: reports of many at once are not believed",
        "supervisor.planner.unhealthy",
        "return recent if recent > 1 and recent * 10 > there else 0",
        "return 0",
    ),
    Mutant(
        "an alert stays until it is delivered",
        "supervisor.planner.alerts",
        "(d := deliveries.get(event_id)) and d.finished]",
        "(d := deliveries.get(event_id))]",
    ),
    Mutant(
        "a hang is reported once",
        "supervisor.planner.alerts",
        "    if since and not draft.job.hung_since:",
        "    if since:",
    ),
    Mutant(
        "workers that outlive SIGKILL are reported once",
        "supervisor.planner.alerts",
        "        if problem and problem != node.worker_problem and not draft.full:",
        "        if problem and not draft.full:",
    ),
    Mutant(
        "an early failure ends a job at the second of its kind only",
        "spotsup_trainer.rendezvous.membership",
        "    if before is None or now.round != before.round + 1:\n        return False\n",
        "    if before is None:\n        return True\n",
    ),
    Mutant(
        "windows: a node leaves in time for its job's checkpoint",
        "supervisor.planner.predicates",
        "draft.now >= node.notice.deadline - leaving_takes_s(draft)",
        "draft.now >= node.notice.deadline - draft.rules.leave_margin_s",
    ),
)


def install(mutant: Mutant | None) -> None:
    """Remove the rule in this process. Raises ValueError if its module is imported, or lacks its text."""
    if mutant is None:
        return
    if mutant.module in sys.modules:
        raise ValueError(f"{mutant.module} is already imported: a mutant needs a process of its own")
    replace_code(mutant.module, mutated(mutant))


def mutated(mutant: Mutant) -> CodeType:
    """Its module without the rule. Raises ValueError if the module lacks the text."""
    folder = ROOT / "trainer" if mutant.module.startswith("spotsup_trainer") else ROOT
    path = (folder / Path(*mutant.module.split("."))).with_suffix(".py")
    source = path.read_text()
    found = source.count(mutant.old)
    if found != 1:
        raise ValueError(f"mutant {mutant.name}: its text occurs {found} times in {path}: update the mutant")
    return compile(source.replace(mutant.old, mutant.new), str(path), "exec")


def _run(asked: tuple[int, float]) -> tuple[int, str]:
    from tests.sim.run import run_seed

    result = run_seed(asked)
    return result.seed, result.broken


def hunt(mutant: Mutant | None, seeds: int, start: int, hours: float, jobs: int) -> dict[str, object]:
    """Run the seeds; returns how many detect the mutant, and by which promises."""
    begun = time.monotonic()
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, initializer=install, initargs=(mutant,)) as pool:
        found = pool.map(_run, [(seed, hours) for seed in range(start, start + seeds)], chunksize=1)
    broken = {seed: text for seed, text in found if text}
    return {
        "mutant": mutant.name if mutant else "none",
        "found": len(broken),
        "seeds": seeds,
        "first": min(broken, default=None),
        "by": sorted({text.partition(":")[0] for text in broken.values()}),
        "wall_s": round(time.monotonic() - begun, 1),
    }


def main() -> int:
    """The command line: exit status 1 if a mutant was not detected, or the unchanged daemon breaks a promise."""
    parser = argparse.ArgumentParser(prog="tests.sim.mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=24, help="per mutant")
    parser.add_argument("--start", type=int, default=1)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", help="mutants with this in their name")
    args = parser.parse_args()
    rows = []
    for mutant in (None, *MUTANTS):
        if args.only and (mutant is None or args.only not in mutant.name):
            continue
        row = hunt(mutant, args.seeds, args.start, args.hours, args.jobs)
        rows.append(row)
        by = ", ".join(row["by"])  # type: ignore[arg-type]
        print(f"{row['mutant']:<66} {row['found']:>4} of {row['seeds']} seeds   {by}", flush=True)
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / "sim-mutants.json").write_text(json.dumps({"rows": rows}))
    missed = [row["mutant"] for row in rows if not row["found"] and row["mutant"] != "none"]
    wrong = any(row["found"] for row in rows if row["mutant"] == "none")
    print(f"sim-mutants: {len(rows)} rows, not detected: {', '.join(map(str, missed)) or 'none'}")
    return 1 if missed or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
