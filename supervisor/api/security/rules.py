"""What a route does, and so who may use it: it stands at the route, and the gate asks before it reads any of a body.

A route without it is refused to everyone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.routing import BaseRoute, Route

from supervisor.access import Action, Caller, Role
from supervisor.api.security.unix_socket import user_name

# The API's document has it, too.
ACTION, PAGE = "x-spotsup-action", "x-spotsup-page"
# Those that are in the audit log. What one would get is not.
AUDITED = frozenset({Action.SUBMIT, Action.CHANGE, Action.LOGIN, Action.OPERATE})


@dataclass(frozen=True, slots=True)
class Rule:
    """Of a route."""

    action: Action
    is_page: bool = False


def may(action: Action, *, page: bool = False) -> dict[str, Any]:
    """Return what a route takes as `openapi_extra`. `page`: a browser keeps the token for it in a cookie; it changes
    nothing."""
    return {ACTION: str(action), PAGE: True} if page else {ACTION: str(action)}


def rule_of(route: BaseRoute) -> Rule | None:
    """Return what stands at a route; None where nothing does."""
    found: Mapping[str, Any] = getattr(route, "openapi_extra", None) or {}
    return Rule(Action(found[ACTION]), PAGE in found) if ACTION in found else None


def rules_of(routes: Iterable[BaseRoute]) -> dict[str, Rule | None]:
    """Return what stands at each route, by `METHOD /path`."""
    found = [route for route in routes if isinstance(route, Route)]
    return {f"{method} {each.path}": rule_of(each) for each in found for method in sorted(each.methods or ())}


def caller_on_socket(client: tuple[str, int]) -> Caller:
    """Return who connects to the Unix socket: whom it lets in may do everything."""
    return Caller(user_name(client), Role.ADMIN)
