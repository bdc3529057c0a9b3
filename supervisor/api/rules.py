"""What each route of the API does, and so who may use it. A route that is not in the table is refused to everyone."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from supervisor.access import Action, Caller, Role
from supervisor.api.unix_socket import user_name

# The dashboard's, for browsers, which are no part of the API and its description.
DASHBOARD: Mapping[str, Action] = MappingProxyType(
    {
        "GET /": Action.READ,
        "GET /fleet": Action.READ,
        "GET /queue": Action.READ,
        "GET /money": Action.READ,
        "GET /jobs/{name}": Action.READ,
        "GET /jobs/{name}/logs": Action.READ,
        "GET /static/{version}/{name}": Action.PUBLIC,
        "GET /login": Action.PUBLIC,
        "POST /login": Action.PUBLIC,
        "POST /logout": Action.PUBLIC,
    }
)
# `METHOD /path`, as it is registered.
RULES: Mapping[str, Action] = MappingProxyType(
    {
        "GET /v1/ca": Action.PUBLIC,
        "GET /v1/openapi.json": Action.READ,
        "GET /metrics": Action.READ,
        "GET /v1/health": Action.READ,
        "GET /v1/me": Action.READ,
        "GET /v1/jobs": Action.READ,
        "GET /v1/jobs/{name}": Action.READ,
        "GET /v1/jobs/{name}/events": Action.READ,
        "GET /v1/jobs/{name}/logs": Action.READ,
        "GET /v1/jobs/{name}/logs/begins": Action.READ,
        "GET /v1/jobs/{name}/stream": Action.READ,
        "GET /v1/jobs/{name}/cost": Action.READ,
        "GET /v1/jobs/{name}/report": Action.READ,
        "GET /v1/jobs/{name}/spec": Action.READ,
        "GET /v1/cost": Action.READ,
        "GET /v1/events": Action.READ,
        "GET /v1/nodes": Action.READ,
        "GET /v1/queue": Action.READ,
        "GET /v1/sweeps": Action.READ,
        "GET /v1/sweeps/{sweep}": Action.READ,
        "GET /v1/targets": Action.READ,
        "POST /v1/check": Action.PLAN,
        "POST /v1/plan": Action.PLAN,
        "POST /v1/explain": Action.PLAN,
        "POST /v1/recorded": Action.PLAN,
        "PUT /v1/blobs": Action.SUBMIT,
        "POST /v1/jobs": Action.SUBMIT,
        "POST /v1/sweeps": Action.SUBMIT,
        "POST /v1/sweeps/{sweep}/cancel": Action.CHANGE,
        "POST /v1/jobs/{name}/scale": Action.CHANGE,
        "POST /v1/jobs/{name}/limits": Action.CHANGE,
        "POST /v1/jobs/{name}/cancel": Action.CHANGE,
        "POST /v1/jobs/{name}/pause": Action.CHANGE,
        "POST /v1/jobs/{name}/resume": Action.CHANGE,
        "POST /v1/nodes/{node}/drain": Action.CHANGE,
        "POST /v1/nodes/{node}/login": Action.LOGIN,
        "POST /v1/daemon/pause": Action.OPERATE,
        "POST /v1/daemon/resume": Action.OPERATE,
        "POST /v1/adopt": Action.OPERATE,
        "GET /v1/audit": Action.OPERATE,
        **DASHBOARD,
    }
)
# Those of which a browser keeps the token in a cookie. They change nothing.
PAGES = frozenset(name for name, action in DASHBOARD.items() if action is Action.READ)
# Those that are in the audit log. What one would get is not.
AUDITED = frozenset({Action.SUBMIT, Action.CHANGE, Action.LOGIN, Action.OPERATE})


def caller_on_socket(client: tuple[str, int]) -> Caller:
    """Who connects to the Unix socket: whom it lets in may do everything."""
    return Caller(user_name(client), Role.ADMIN)
