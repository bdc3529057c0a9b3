"""Words for the tests of membership."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from spotsup_trainer.rendezvous.membership import Close, next_round
from spotsup_trainer.rendezvous.view import Rules, View
from spotsup_trainer.wire import Failure, Hint, Member, MemberState, Round, RoundMember

LONG_AFTER = 1e6


def member(node: str, state: MemberState = "waiting", last_round: int = 0, **more: Any) -> Member:
    return Member(node, more.pop("incarnation", f"{node}1"), f"10.0.0.{ord(node)}", 4000, state, last_round, **more)


def round_of(nodes: Iterable[str], number: int = 1, **more: Any) -> Round:
    members = tuple(RoundMember(node, f"{node}1", f"10.0.0.{ord(node)}", 4000) for node in nodes)
    return Round(number, members, formed_at=0.0, **more)


def hint(nodes: str, minimum: int = 1, maximum: int = 0, spares: str = "") -> Hint:
    return Hint(tuple(nodes), minimum, maximum or max(1, len(nodes)), spares=tuple(spares))


def failure(number: int, message: str = "boom", at: float = 0.0, exit_code: int = 1, **more: Any) -> Failure:
    return Failure(number, 0, exit_code, message, at, **more)


def view(*members: Member, rules: Rules | None = None, **more: Any) -> View:
    return View(rules or Rules(1, 6), {m.node: m for m in members}, **more)


def close(of: View, now: float = LONG_AFTER) -> Round:
    decision = next_round(of, now, 0.0)
    assert isinstance(decision, Close), decision
    return decision.round
