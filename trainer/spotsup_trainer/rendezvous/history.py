"""What a round leaves behind for the next: who was lost, what failed or hung, how much was done, and whether the
program has failed for good. Pure.

It travels in the record of the next round (`Round`): no launcher has to remember anything.
"""

from __future__ import annotations

import math
import re
from collections import Counter

from spotsup_trainer.rendezvous.view import View, is_in, is_same, live
from spotsup_trainer.wire import Failure, Loss, Member, Round

# A node may be lost this often within the last minutes and rejoin at once; after that it has to wait.
_FREE_LOSSES = 2
_MAX_REJOIN_BACKOFF_S = 30.0
_MAX_DOUBT_BACKOFF_S = 60.0
_LOSS_WINDOW_S = 600.0
_MAX_LOSSES = 16
# A failure so soon after the start of the workers, before any step, is the same at the next start.
EARLY_FAILURE_S = 30.0
# Rounds whose steps hang are formed anew so often within a day, where the job asks for it.
MAX_HANG_RESTARTS = 3
_HANG_WINDOW_S = 24 * 3600.0
_VARYING = re.compile(r"0x[0-9a-f]+|\d+|(?:/[\w.+@-]+)+", re.IGNORECASE)
_SIGKILL = -9  # most likely by the kernel, out of memory
# After this much progress, failures of the program before it do not count any more: after so many checkpoints, or, for
# programs without a Session, after a round that ran for so long before it failed.
_PROGRESS_CHECKPOINTS = 3
_PROGRESS_S = 24 * 3600.0


def rejoin_backoff_s(count: int) -> float:
    """Return how long a node must be up before it may rejoin, after so many recent losses.

    Each loss pauses all nodes: a node that keeps dying must not keep the others from training.
    """
    return min(_MAX_REJOIN_BACKOFF_S, 2.0 ** (count - _FREE_LOSSES)) if count > _FREE_LOSSES else 0.0


def rejoin_backoffs(view: View, now: float, at: float = -math.inf) -> dict[str, float]:
    """Node -> until when it may not rejoin. `at`: `now` in UNIX seconds, to leave out old losses."""
    if view.round is None or len(view.round.recent_losses) < _FREE_LOSSES:
        return {}  # with the current one, no node can have more than the free ones
    backoffs = {}
    for node, count in Counter(loss.node for loss in losses(view, at)).items():
        member, until = live(view).get(node), view.since.get(node, -math.inf) + rejoin_backoff_s(count)
        if member is not None and until > now and not is_in(view.round, member):
            backoffs[node] = until
    return backoffs


def may_restart(current: Round, at: float) -> bool:
    """True if a round whose steps hang may be formed anew, or that did not help before. `at`: UNIX seconds."""
    return sum(at - hung_at < _HANG_WINDOW_S for hung_at in current.recent_hangs) < MAX_HANG_RESTARTS


def losses(view: View, at: float) -> tuple[Loss, ...]:
    """Return the losses of the last minutes, those from the last round included. `at`: UNIX seconds."""
    if view.round is None:
        return ()
    here = live(view)
    lost = [m.node for m in view.round.members if m.node not in view.tombstones and not is_same(m, here.get(m.node))]
    old = [loss for loss in view.round.recent_losses if at - loss.at < _LOSS_WINDOW_S]
    return (*old, *(Loss(node, at) for node in lost))[-_MAX_LOSSES:]


def hangs(last: Round | None, chosen: tuple[Member, ...], at: float) -> tuple[float, ...]:
    """Return when rounds of the last day hung, the last round included. `at`: UNIX seconds."""
    if last is None:
        return ()
    old = [hung_at for hung_at in last.recent_hangs if at - hung_at < _HANG_WINDOW_S]
    return (*old, *([at] if _hung(last, chosen) else []))[-MAX_HANG_RESTARTS:]


def _hung(last: Round, chosen: tuple[Member, ...]) -> bool:
    stayed = [member for member in chosen if is_in(last, member)]
    return bool(stayed) and all(member.stalled_since > 0 for member in stayed)


def failed_member(last: Round, chosen: tuple[Member, ...], dispensable: frozenset[str] = frozenset()) -> Member | None:
    """Return the first member whose program's own failure ended `last`; None if the program was not the reason.

    A lost, left or joined node is the reason instead: a worker that failed was most likely torn down by that (P5).
    `dispensable`: members that the round went on without.
    """
    before = {(m.node, m.incarnation) for m in last.members if m.node not in dispensable}
    if before != {(m.node, m.incarnation) for m in chosen if m.node not in dispensable}:
        return None
    failed = [(m.failure.at, rank) for rank, m in enumerate(chosen) if m.failure and m.failure.round == last.number]
    return chosen[min(failed)[1]] if failed else None


def _doubted(last: Round | None, chosen: tuple[Member, ...]) -> dict[str, Failure]:
    """Return the members whose program failed in `last`, and whose agents call their GPUs unhealthy, which is not
    believed because too many do: node -> its failure."""
    found = ((member.node, member.failure) for member in chosen if member.unhealthy)
    return {node: failure for node, failure in found if last and failure and failure.round == last.number}


def doubtful_failures(last: Round | None, chosen: tuple[Member, ...]) -> int:
    """Return how many rounds in a row failed on such members, the last one included: then nobody knows whether the
    program or a GPU failed. The program is not blamed (P5); a person was alerted, and each further round waits longer.
    """
    return last.doubtful_failures + 1 if last and _doubted(last, chosen) else 0


def doubt_left_s(last: Round | None, chosen: tuple[Member, ...], at: float) -> float:
    """Return how long the next round waits for that. `at`: UNIX seconds; where clocks differ by more, it does not
    wait."""
    if (failures := doubtful_failures(last, chosen)) == 0:
        return 0.0
    backoff_s = min(_MAX_DOUBT_BACKOFF_S, 2.0 ** min(failures, 10))
    left_s = max(failure.at for failure in _doubted(last, chosen).values()) + backoff_s - at
    return left_s if left_s <= backoff_s else 0.0


def progress(last: Round | None, chosen: tuple[Member, ...], failed: Member | None) -> tuple[int, int]:
    """Return how many checkpoints were completed since the program last failed, and how many of its failures still
    count."""
    if last is None:
        return 0, 0
    seen = max((member.checkpoints for member in chosen if member.round == last.number), default=0)
    checkpoints = min(_PROGRESS_CHECKPOINTS, last.checkpoints + seen)
    ran_s = failed.failure.at - last.formed_at if failed and failed.failure else 0.0
    has_progressed = checkpoints >= _PROGRESS_CHECKPOINTS or ran_s >= _PROGRESS_S
    return checkpoints, 0 if has_progressed else last.app_failures


def repeats(before: Failure | None, now: Failure) -> bool:
    """True if a program has failed as in the round before, soon after both starts: it would fail so every time.

    Numbers, addresses and paths in the messages may differ.
    """
    if before is None or now.round != before.round + 1:
        return False
    if any(not 0 < each.after_s <= EARLY_FAILURE_S or each.stepped for each in (before, now)):
        return False
    alike = before.exit_code == now.exit_code != _SIGKILL
    return alike and _VARYING.sub("", before.message) == _VARYING.sub("", now.message)


def verdict(last: Round, failed: Member, failures: int, allowed: int) -> str:
    """Return why the job has failed; "" while its program is started again."""
    failure = failed.failure
    assert failure is not None
    if failures > allowed:
        how = f"{'once' if failures == 1 else f'{failures} times'}, {allowed} allowed; last"
    elif repeats(last.last_failure, failure):
        how = f"twice in the same way, {failure.after_s:.1f} s after the start; last"
    else:
        return ""
    where = f"on {failed.node}, local rank {failure.local_rank}, exit code {failure.exit_code}"
    return f"the program failed {how} {where}: {failure.message}"


def reason(last: Round | None, chosen: tuple[Member, ...], *, failed: bool) -> str:
    """Return why the next round is another one than the last, for people."""
    if last is None:
        return "first round"
    before, after = set(last.nodes()), {member.node for member in chosen}
    parts = [f"{node} joined" for node in sorted(after - before)]
    parts += [f"{node} left" for node in sorted(before - after)]
    parts += [f"{m.node} restarted" for m in chosen if m.node in before and not is_in(last, m)]
    if not parts and (doubted := _doubted(last, chosen)):
        return f"the program failed on {', '.join(doubted)}, which may have unhealthy GPUs"
    if not parts and not failed and _hung(last, chosen):
        return "its steps hung"
    return ", ".join(parts) or ("the program failed" if failed else "re-formed")
