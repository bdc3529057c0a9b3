"""Every route of the daemon over a simulated world: for whatever tries all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

from fastapi import FastAPI
from spotsup_simulator.cloud import OWNER
from spotsup_simulator.world import World

from supervisor.access import AuditEntry, Role, TokenRecord, sha256_of, token_text
from supervisor.api.app import create_app
from supervisor.api.daemon.adoption import Adoption
from supervisor.api.daemon.metrics import add_metrics
from supervisor.api.jobs.report import on_demand_prices
from supervisor.api.nodes.logins import add_logins, login_row
from supervisor.api.quote import Quotes
from supervisor.api.secrets import Secrets, add_secrets
from supervisor.api.security.gate import Users
from supervisor.api.security.throttle import Throttle
from supervisor.api.service import Service
from supervisor.api.submit.explain import Explainer
from supervisor.api.sweeps import Sweeps, add_sweeps
from supervisor.config import Config
from supervisor.identity import Identity
from supervisor.market.admission import QueueRules
from supervisor.planner.world import Rules
from supervisor.web.prices import PriceBook
from supervisor.web.routes import add_dashboard
from supervisor.web.source import source_of
from tests.sim.harness import wait_in
from tests.support.https import Https

SECRET = bytes(range(32))
LASTS_S = 1e6
_ROLES = {"ann": Role.SUBMITTER, "bob": Role.SUBMITTER, "eve": Role.VIEWER, "root": Role.ADMIN}


def tokens() -> dict[str, TokenRecord]:
    """By id: of ann and bob, who submit, eve, who looks, root, and old, an admin whose token has expired."""
    now = time.time()
    found = [
        TokenRecord(_id(user), user, role, sha256_of(SECRET), now - 1.0, now + LASTS_S) for user, role in _ROLES.items()
    ]
    found.append(TokenRecord(_id("old"), "old", Role.ADMIN, sha256_of(SECRET), now - 2.0, now - 1.0))
    return {each.id: each for each in found}


def token_of(user: str, secret: bytes = SECRET) -> str:
    """What this user sends; with another secret, a forged one."""
    return token_text(_id(user), secret)


def _id(user: str) -> str:
    return user.encode().hex().rjust(12, "0")


def unhurried(found: Callable[[], Mapping[str, TokenRecord]], audit: Callable[[AuditEntry], None]) -> Users:
    """Users who may ask as often as they like."""
    return Users(found, audit=audit, per_token=Throttle(1e9, 1e9), failed=Throttle(1e9, 1e9))


def whole_api(world: World, users: Users, entries: list[AuditEntry]) -> FastAPI:
    """The app that `spotsupd run` serves. `entries`: of the audit log."""
    daemon, config = world.daemon, Config()
    quotes = Quotes(world.provisioners)
    prices = partial(on_demand_prices, quotes)
    api = Service(daemon.journal, daemon.leader, world.clock, ["local"], wait_in(world), quotes.quote, hosted=["local"])
    app = create_app(
        api,
        lambda: daemon.loop.status,
        world.clock,
        "0",
        Adoption(daemon.journal, world.provisioners, OWNER, world.clock, wait_in(world)),
        Explainer(config, "/"),
        prices,
        users=users,
        audit=lambda: entries,
        ca=lambda: "a CA",
    )
    add_metrics(app, lambda: b"spotsup_up 1\n")
    add_logins(app, api.jobs, partial(login_row, config, Identity(b"s" * 32)), world.clock)
    add_sweeps(app, Sweeps(api, daemon.journal, world.clock, QueueRules()))
    add_secrets(app, Secrets(daemon.journal, Identity(b"s" * 32), world.clock))
    source = source_of(
        api, daemon.journal, lambda: daemon.loop.status, PriceBook(prices, world.clock), world.clock, "0", "c", Rules()
    )
    add_dashboard(app, source, users)
    return app


def whole(https: Https) -> FastAPI:
    """For `Https.started`: all routes, and users who may ask as often as they like."""
    https.tokens = tokens()
    return whole_api(https.world, unhurried(lambda: https.tokens, https.entries.append), https.entries)
