"""Who may do what through the API: the rule, tokens, and what stands before every route."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from spotsup_simulator.world import World

from supervisor.access import (
    Action,
    AuditEntry,
    Caller,
    Role,
    TokenRecord,
    caller_of,
    id_of,
    refusal,
    sha256_of,
    token_text,
)
from supervisor.api.app import create_app
from supervisor.api.daemon.events import MAX_EVENTS
from supervisor.api.daemon.metrics import add_metrics
from supervisor.api.nodes.logins import add_logins, login_row
from supervisor.api.problems import MEDIA_TYPE
from supervisor.api.secrets import Secrets, add_secrets
from supervisor.api.security import rules
from supervisor.api.security.gate import FAILED_BURST, MAX_BODY_BYTES, REFUSED_BURST, Users
from supervisor.api.security.throttle import Folded, Throttle
from supervisor.api.security.unix_socket import PEER
from supervisor.api.submit import routes as submit_routes
from supervisor.api.submit.explain import Explainer
from supervisor.api.sweeps import add_sweeps
from supervisor.cli.operate import audit_line
from supervisor.config import Config
from supervisor.events import EventKind
from supervisor.identity import Identity
from supervisor.journal.journal import Journal
from supervisor.model import Event
from supervisor.planner.actions import Commit
from supervisor.runtime.loop import Status
from supervisor.web.routes import add_dashboard
from tests.dashboard.clusters import Cluster
from tests.sim.harness import service, submit, training_world
from tests.sim.promises import jobs_of
from tests.support.machines import CLIENT_KEY

SECRET = bytes(range(32))
IDENTITY = Identity(b"s" * 32)
IDS = {"ann": "a" * 12, "bob": "b" * 12, "eve": "e" * 12, "root": "0" * 12, "old": "f" * 12}
ROLES = {"ann": Role.SUBMITTER, "bob": Role.SUBMITTER, "eve": Role.VIEWER, "root": Role.ADMIN, "old": Role.ADMIN}
NOW = 1000.0


def token(user: str) -> TokenRecord:
    return TokenRecord(IDS[user], user, ROLES[user], sha256_of(SECRET), 0.0, NOW - 1 if user == "old" else NOW + 1)


TOKENS = {IDS[user]: token(user) for user in IDS}


def caller(user: str) -> Caller:
    return TOKENS[IDS[user]].caller()


# -- the rule ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "allowed"),
    [
        ("eve", {Action.READ}),
        ("bob", {Action.READ, Action.PLAN, Action.SUBMIT}),
        ("ann", {Action.READ, Action.PLAN, Action.SUBMIT, Action.CHANGE, Action.LOGIN}),
        ("root", {*Action} - {Action.PUBLIC}),
    ],
)
def test_a_role_may_do_what_it_is_for_with_a_job_of_ann(user: str, allowed: set[Action]) -> None:
    assert {each for each in Action if not refusal(caller(user), each, "ann")} == {*allowed, Action.PUBLIC}


def test_a_job_of_which_no_owner_is_known_is_for_admins() -> None:
    assert "the job is nobody's" in refusal(caller("ann"), Action.CHANGE, "")
    assert "the job is nobody's" in refusal(Caller("", Role.SUBMITTER, "id"), Action.CHANGE, "")
    assert not refusal(caller("root"), Action.CHANGE, "")


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_a_token_is_its_users_until_it_expires() -> None:
    text = token_text(IDS["ann"], SECRET)
    assert id_of(text) == IDS["ann"]
    assert caller_of(text, token("ann"), NOW) == Caller("ann", Role.SUBMITTER, IDS["ann"])
    assert caller_of(text, token("ann"), NOW + 1) is None
    assert SECRET.hex() not in repr(token("ann"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "spotsup_",
        token_text(IDS["ann"], bytes(32)),
        token_text(IDS["ann"], SECRET) + "0",
        token_text(IDS["ann"], SECRET).upper(),
        token_text("ⅻ" * 12, SECRET),
        f"spotsup_{IDS['ann']}_{token('ann').sha256}",
        "\0" * 100,
    ],
)
def test_a_forged_token_is_nobodys(text: str) -> None:
    assert caller_of(text, token("ann"), NOW) is None


def test_a_token_that_was_revoked_or_of_which_only_the_id_is_known_is_nobodys() -> None:
    assert caller_of(token_text(IDS["ann"], SECRET), None, NOW) is None
    assert caller_of(token_text(IDS["ann"], bytes.fromhex("00" * 32)), None, NOW) is None


# -- how often ---------------------------------------------------------------------------------------------------------


def test_a_throttle_lets_a_burst_pass_then_so_many_per_second_and_forgets_the_oldest_key() -> None:
    throttle = Throttle(burst=2, per_s=0.5, max_keys=3)
    assert [throttle.wait_s("a", 0.0) for _ in range(3)] == [0.0, 0.0, 2.0]
    assert throttle.wait_s("a", 1.0) == 1.0
    assert throttle.wait_s("a", 2.0) == 0.0
    assert throttle.wait_s("b", 2.0) == 0.0, "each key has its own"
    assert throttle.wait_s("b", -1e9) == 0.0
    for number in range(100):
        throttle.wait_s(f"{number}", 2.0)
    assert len(throttle) == 3


# -- before every route ------------------------------------------------------------------------------------------------


@dataclass
class Desk:
    """The API over a world, as callers over the network see it."""

    world: World
    entries: list[AuditEntry] = field(default_factory=list)
    tokens: Mapping[str, TokenRecord] = field(default_factory=lambda: TOKENS)

    def __post_init__(self) -> None:
        self.users = Users(lambda: self.tokens, lambda: NOW, self.entries.append)
        self.app: FastAPI = create_app(
            service(self.world),
            lambda: Status(0.0, "", {}, {}),
            self.world.clock,
            "0",
            users=self.users,
            audit=lambda: list(self.entries),
            ca=lambda: "a CA",
        )
        add_logins(self.app, service(self.world).jobs, partial(login_row, Config(), IDENTITY), self.world.clock)

    def ask(self, user: str, method: str, path: str, **more: Any) -> httpx.Response:
        """`user`: whose token is sent; "" for none, `uid` for a user of this computer."""
        headers = {"authorization": f"Bearer {token_text(IDS[user], SECRET)}"} if user in IDS else {}
        headers |= more.pop("headers", {})
        client = (PEER, 0) if user == "uid" else ("192.0.2.7", 4000)

        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=client, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://spotsupd") as http:
                return await http.request(method, path, headers=headers, timeout=60.0, **more)

        return asyncio.run(call())


@pytest.fixture
def desk() -> Desk:
    world = training_world(1, 2, 4)
    submit(world, "anns", 1, 1, 2, owner="ann")
    return Desk(world)


def test_every_route_has_a_rule_and_every_rule_a_route(desk: Desk) -> None:
    app = create_app(
        service(desk.world),
        lambda: Status(0.0, "", {}, {}),
        desk.world.clock,
        "0",
        adoption=object(),  # type: ignore[arg-type]  # only its route is looked at
        explainer=Explainer(Config(), "/"),
        audit=list,
    )
    add_metrics(app, bytes)
    add_dashboard(app, Cluster().source())
    add_sweeps(app, object())  # type: ignore[arg-type]  # as above
    add_logins(app, service(desk.world), object(), desk.world.clock)  # type: ignore[arg-type]  # as above
    add_secrets(app, object())  # type: ignore[arg-type]  # as above
    found = rules.rules_of(app.routes)
    assert len(found) == len(app.routes) >= 50
    assert [name for name, rule in found.items() if rule is None] == []
    pages = {name for name, rule in found.items() if rule and rule.is_page}
    assert {"GET /", "GET /jobs/{name}", "GET /money"} <= pages
    assert not any("/v1/" in name or "metrics" in name or not name.startswith("GET") for name in pages)
    public = {name for name, rule in found.items() if rule and rule.action is Action.PUBLIC}
    browsers = {"GET /login", "POST /login", "POST /logout", "GET /static/{version}/{name}"}
    assert public == {"GET /v1/ca", *browsers}


def test_a_route_without_a_rule_is_refused_to_everyone(desk: Desk) -> None:
    desk.app.add_api_route("/v1/new", lambda: "secret")
    for user in ("root", "uid"):
        reply = desk.ask(user, "GET", "/v1/new")
        assert (reply.status_code, reply.json()["error"]) == (403, "it has no rule")


def test_nothing_is_answered_without_a_token(desk: Desk) -> None:
    desk.users.failed = Throttle(1000, 1.0)
    for name, rule in rules.rules_of(desk.app.routes).items():
        assert rule is not None
        if rule.action is Action.PUBLIC:
            continue
        method, _, path = name.partition(" ")
        reply = desk.ask("", method, path.format(name="anns", node="anns-1", sweep="lr", sha256="0" * 64))
        assert (reply.status_code, reply.headers["www-authenticate"]) == (401, "Bearer"), name
    assert desk.entries == []


def test_the_ca_is_for_everyone_who_can_connect(desk: Desk) -> None:
    assert desk.ask("", "GET", "/v1/ca").json() == {"ca": "a CA"}


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("scale", {"desired": 2}),
    ("limits", {"hours": 5.0}),
    ("pause", {}),
    ("resume", {}),
    ("cancel", {}),
]


@pytest.mark.parametrize(("verb", "body"), CHANGES)
def test_jobs_are_changed_by_their_owner_and_admins_alone(desk: Desk, verb: str, body: dict[str, Any]) -> None:
    before = jobs_of(desk.world)["anns"].record
    for user, why in (("bob", "the job is of ann: ask its owner, or an admin"), ("eve", "may only look")):
        reply = desk.ask(user, "POST", f"/v1/jobs/anns/{verb}", json=body)
        assert reply.status_code == 403
        assert why in reply.json()["error"]
    assert jobs_of(desk.world)["anns"].record == before
    assert desk.ask("ann", "POST", f"/v1/jobs/anns/{verb}", json=body).status_code == 200
    assert desk.ask("root", "POST", f"/v1/jobs/anns/{verb}", json=body).status_code == 200
    assert [(each.user, each.target, each.status) for each in desk.entries] == [
        ("bob", "anns", 403),
        ("eve", "anns", 403),
        ("ann", "anns", 200),
        ("root", "anns", 200),
    ]


def test_ended_jobs_are_deleted_by_their_owner_and_admins_alone(desk: Desk) -> None:
    assert desk.ask("ann", "POST", "/v1/jobs/anns/delete").status_code == 409, "it has not ended"
    desk.ask("ann", "POST", "/v1/jobs/anns/cancel")
    desk.world.run_until(lambda world: jobs_of(world)["anns"].record.ended, 600.0)
    desk.world.run_until(lambda world: not jobs_of(world)["anns"].billed, 600.0)
    for user in ("bob", "eve"):
        assert desk.ask(user, "POST", "/v1/jobs/anns/delete").status_code == 403
        assert "anns" in jobs_of(desk.world)
    assert desk.ask("ann", "POST", "/v1/jobs/anns/delete").json()["name"] == "anns"
    assert "anns" not in jobs_of(desk.world)
    assert (desk.entries[-1].action, desk.entries[-1].target) == ("POST /v1/jobs/{name}/delete", "anns")
    assert desk.ask("ann", "POST", "/v1/jobs/anns/delete").status_code == 404


def test_secrets_are_their_owners_and_only_admins_see_whose_there_are(desk: Desk) -> None:
    add_secrets(desk.app, Secrets(desk.world.daemon.journal, IDENTITY, desk.world.clock))
    assert desk.ask("ann", "POST", "/v1/secrets/KEY", json={"value": "hf-marked"}).json()["owner"] == "ann"
    assert desk.ask("bob", "POST", "/v1/secrets/KEY", json={"value": "hf-marked-bob"}).json()["owner"] == "bob"
    assert desk.ask("eve", "POST", "/v1/secrets/KEY", json={"value": "hf-marked"}).status_code == 403
    seen = {user: desk.ask(user, "GET", "/v1/secrets") for user in ("ann", "bob", "eve", "root")}
    owners = {user: [row["owner"] for row in reply.json()] for user, reply in seen.items()}
    assert owners == {"ann": ["ann"], "bob": ["bob"], "eve": [], "root": ["ann", "bob"]}
    assert not [reply.text for reply in seen.values() if "hf-marked" in reply.text]
    assert desk.ask("bob", "POST", "/v1/secrets/KEY/delete?owner=ann").status_code == 403
    for wrong in ({"value": ["hf-marked"]}, {"value": "hf-marked" * 9000}, {"other": "hf-marked"}, "hf-marked"):
        reply = desk.ask("ann", "POST", "/v1/secrets/KEY", json=wrong)
        assert (reply.status_code, "hf-marked" in reply.text) == (422, False)
    assert desk.ask("root", "POST", "/v1/secrets/KEY/delete?owner=ann").json()["owner"] == "ann"
    assert desk.ask("ann", "POST", "/v1/secrets/KEY/delete").status_code == 404
    assert [row["owner"] for row in desk.ask("root", "GET", "/v1/secrets").json()] == ["bob"]
    assert {("bob", "KEY", 403), ("root", "KEY", 200)} <= {(e.user, e.target, e.status) for e in desk.entries}
    assert "hf-marked" not in repr(desk.entries)


def test_a_job_names_secrets_of_its_owner_alone(desk: Desk) -> None:
    add_secrets(desk.app, Secrets(desk.world.daemon.journal, IDENTITY, desk.world.clock))
    desk.ask("bob", "POST", "/v1/secrets/KEY", json={"value": "x"})
    digest = desk.ask("ann", "PUT", "/v1/blobs", content=b"code").json()["sha256"]
    body = {"spec": {"name": "new", "nodes": 1, "run": "t.py", "secrets": ["KEY"]}}
    stored = {**body, "code_sha256": digest, "submission": "12345678"}
    for path, sent in (("/v1/check", body), ("/v1/jobs", stored)):
        reply = desk.ask("ann", "POST", path, json=sent)
        assert reply.status_code == 409
        assert "ann has no secret KEY: `spotsupctl secret set KEY`" in reply.json()["error"]
    desk.ask("ann", "POST", "/v1/secrets/KEY", json={"value": "x"})
    assert desk.ask("ann", "POST", "/v1/jobs", json=stored).status_code == 200


def test_a_node_of_somebody_elses_job_is_not_drained(desk: Desk) -> None:
    node = next(iter(jobs_of(desk.world)["job"].nodes))
    assert "the job is nobody's" in desk.ask("ann", "POST", f"/v1/nodes/{node}/drain").json()["error"]
    assert desk.ask("root", "POST", f"/v1/nodes/{node}/drain").status_code == 200


@pytest.fixture
def anns_node(desk: Desk) -> str:
    """Of a job of hers, with an address."""
    desk.world.run_until(lambda world: any(each.ssh_host for each in jobs_of(world)["anns"].nodes.values()), 600.0)
    return next(iter(jobs_of(desk.world)["anns"].nodes))


@pytest.mark.parametrize("user", ["ann", "root", "uid"])
def test_a_node_is_open_to_its_jobs_owner_and_admins_by_a_certificate_for_their_own_key(
    desk: Desk, anns_node: str, user: str
) -> None:
    reply = desk.ask(user, "POST", f"/v1/nodes/{anns_node}/login", json={"public_key": CLIENT_KEY.public})
    assert (reply.status_code, set(reply.json())) == (
        200,
        {"host", "port", "user", "known_hosts", "certificate", "expires_at", "agent_config"},
    )
    assert "PRIVATE" not in reply.text
    assert reply.json()["certificate"].startswith("ssh-ed25519-cert-v01@openssh.com ")
    (entry,) = desk.entries
    assert (entry.action, entry.target, entry.status) == ("POST /v1/nodes/{node}/login", anns_node, 200)


@pytest.mark.parametrize(
    ("user", "why"), [("bob", "the job is of ann: ask its owner, or an admin"), ("eve", "may only look")]
)
def test_a_node_of_somebody_elses_job_is_closed(desk: Desk, anns_node: str, user: str, why: str) -> None:
    reply = desk.ask(user, "POST", f"/v1/nodes/{anns_node}/login", json={"public_key": CLIENT_KEY.public})
    assert (reply.status_code, "certificate" in reply.text) == (403, False)
    assert why in reply.json()["error"]
    assert [each.status for each in desk.entries] == [403]


def test_a_login_to_an_unknown_node_gets_nothing(desk: Desk) -> None:
    for user in ("ann", "root"):
        reply = desk.ask(user, "POST", "/v1/nodes/nobody-1/login", json={"public_key": CLIENT_KEY.public})
        assert (reply.status_code, "certificate" in reply.text) == (404, False)


def test_a_job_is_its_submitters_and_its_name_stays_theirs(desk: Desk) -> None:
    digest = desk.ask("ann", "PUT", "/v1/blobs", content=b"code").json()["sha256"]
    body = {"spec": {"name": "new", "nodes": 1, "run": "t.py"}, "code_sha256": digest, "submission": "12345678"}
    made = desk.ask("ann", "POST", "/v1/jobs", json=body)
    assert (made.status_code, made.json()["owner"]) == (200, "ann")
    again = desk.ask("ann", "POST", "/v1/jobs", json=body)
    assert again.json()["task_id"] == made.json()["task_id"], "the submission's id is its idempotency key"
    assert desk.ask("eve", "POST", "/v1/jobs", json=body).status_code == 403
    desk.ask("ann", "POST", "/v1/jobs/new/cancel")
    desk.world.run_until(lambda world: jobs_of(world)["new"].record.ended, 600.0)
    taken = desk.ask("bob", "POST", "/v1/jobs", json={**body, "submission": "87654321"})
    assert (taken.status_code, "the job is of ann" in taken.json()["error"]) == (403, True)
    assert [each.target for each in desk.entries if each.action == "POST /v1/jobs"][-1] == "new"


def test_a_submission_may_have_its_id_in_a_header(desk: Desk) -> None:
    digest = desk.ask("ann", "PUT", "/v1/blobs", content=b"code").json()["sha256"]
    body = {"spec": {"name": "new", "nodes": 1, "run": "t.py"}, "code_sha256": digest}
    key = {"idempotency-key": "12345678"}
    made = desk.ask("ann", "POST", "/v1/jobs", json=body, headers=key)
    for again in (
        desk.ask("ann", "POST", "/v1/jobs", json=body, headers=key),
        desk.ask("ann", "POST", "/v1/jobs", json={**body, "submission": "12345678"}),
    ):
        assert (again.status_code, again.json()["task_id"]) == (200, made.json()["task_id"])


@pytest.mark.parametrize(
    ("body", "key", "why"),
    [
        ({}, "", "send `submission`, or the header Idempotency-Key"),
        ({}, "1234567", "with 8 to 64 characters"),
        ({"submission": "12345678"}, "87654321", "differ: send one of them"),
    ],
)
def test_a_submission_without_one_id_is_refused(desk: Desk, body: dict[str, Any], key: str, why: str) -> None:
    digest = desk.ask("ann", "PUT", "/v1/blobs", content=b"code").json()["sha256"]
    asked = {"spec": {"name": "new", "nodes": 1, "run": "t.py"}, "code_sha256": digest, **body}
    reply = desk.ask("ann", "POST", "/v1/jobs", json=asked, headers={"idempotency-key": key})
    assert (reply.status_code, why in reply.json()["error"]) == (422, True), reply.text
    assert "new" not in jobs_of(desk.world)


@pytest.mark.parametrize(("path", "key"), [("/v1/cost", "name"), ("/v1/queue", "job"), ("/v1/events?jobs=true", "id")])
def test_these_lists_come_in_pages_too(desk: Desk, path: str, key: str) -> None:
    for number in range(3):
        submit(desk.world, f"later-{number}", 1, 1, 1, start_after="1970-03-01T00:00Z")
    whole = [row[key] for row in desk.ask("root", "GET", path).json()]
    seen: list[str] = []
    page = f"{path}{'&' if '?' in path else '?'}limit=2"
    while page:
        reply = desk.ask("root", "GET", page)
        assert len(reply.json()) <= 2
        seen += [row[key] for row in reply.json()]
        page = reply.headers.get("link", "").partition(">")[0].removeprefix("<")
    assert (seen, len(seen) > 2) == (whole, True)


def test_what_happened_to_the_cluster_is_told_without_a_job(desk: Desk) -> None:
    spent = Event("budget-1", NOW, "", EventKind.BUDGET_REACHED, "the budget of ann is spent")
    assert desk.world.daemon.journal.commit(Commit("", {}, events=(spent,)), ())
    (row,) = desk.ask("eve", "GET", "/v1/events").json()
    assert (row["kind"], row["text"]) == ("budget-reached", "the budget of ann is spent")
    kinds = {row["kind"] for row in desk.ask("eve", "GET", "/v1/events?jobs=true").json()}
    assert {"budget-reached", "submitted"} <= kinds


def test_only_the_newest_events_of_all_are_answered(desk: Desk) -> None:
    journal = desk.world.daemon.journal
    for begin in range(0, MAX_EVENTS + 100, 100):
        events = [
            Event(f"budget-{number:05d}", float(number), "", EventKind.BUDGET_REACHED, "it is spent")
            for number in range(begin, begin + 100)
        ]
        assert journal.commit(Commit("", {}, events=events), ())
    rows = desk.ask("eve", "GET", "/v1/events").json()
    assert [rows[0]["id"], rows[-1]["id"], len(rows)] == ["budget-00100", "budget-01099", MAX_EVENTS]


def test_numbers_are_changed_only_as_they_were_seen(desk: Desk) -> None:
    seen = desk.ask("eve", "GET", "/v1/jobs/anns").headers["etag"]
    first = desk.ask("ann", "POST", "/v1/jobs/anns/scale", json={"desired": 2}, headers={"if-match": seen})
    assert first.status_code == 200
    for verb, body in CHANGES[:2]:
        late = desk.ask("root", "POST", f"/v1/jobs/anns/{verb}", json=body, headers={"if-match": seen})
        assert (late.status_code, "it has 2 nodes" in late.json()["error"]) == (412, True)
    now = first.headers["etag"]
    assert desk.ask("eve", "GET", "/v1/jobs/anns").headers["etag"] == now != seen
    for match in (now, f'"other", {now}', "*"):
        body = {"desired": 2}
        assert desk.ask("ann", "POST", "/v1/jobs/anns/scale", json=body, headers={"if-match": match}).is_success


def test_who_did_what_is_for_admins_and_says_with_which_token(desk: Desk) -> None:
    desk.ask("ann", "POST", "/v1/jobs/anns/scale", json={"desired": 2})
    desk.ask("uid", "POST", "/v1/daemon/pause", json={})
    assert desk.ask("ann", "GET", "/v1/audit").status_code == 403
    (row,) = desk.ask("root", "GET", "/v1/audit?user=ann&job=anns").json()
    assert row == {
        "at": NOW,
        "request": row["request"],
        "user": "ann",
        "token": IDS["ann"],
        "address": "192.0.2.7",
        "action": "POST /v1/jobs/{name}/scale",
        "target": "anns",
        "status": 200,
        "count": 1,
    }
    host = desk.ask("uid", "GET", "/v1/audit").json()[1]
    assert (host["token"], host["address"], host["action"]) == ("", "", "POST /v1/daemon/pause")


def test_every_error_is_a_problem_with_the_requests_id(desk: Desk) -> None:
    def fails() -> None:
        raise RuntimeError("secret")

    desk.app.add_api_route("/v1/health2", fails)
    asked = {
        ("GET", "/v1/jobs/none"): 404,
        ("GET", "/v1/none"): 404,
        ("PATCH", "/v1/jobs"): 405,
        ("POST", "/v1/jobs/anns/scale"): 422,
        ("GET", "/v1/audit?limit=0"): 422,
        ("GET", "/v1/jobs/anns/access"): 404,
    }
    for (method, path), status in asked.items():
        reply = desk.ask("root", method, path)
        row = reply.json()
        assert (reply.status_code, reply.headers["content-type"]) == (status, MEDIA_TYPE), path
        assert (row["status"], row["request"]) == (status, reply.headers["x-request-id"])
        assert row["detail"] == row["error"]
        assert row["code"] in {2, 4}


def test_a_fault_says_nothing_but_where_to_look(desk: Desk) -> None:
    def fails() -> None:
        raise RuntimeError("secret")

    desk.app.add_api_route("/v1/fault", fails, methods=["POST"], openapi_extra=rules.may(Action.OPERATE))
    reply = desk.ask("root", "POST", "/v1/fault")
    assert reply.status_code == 500
    assert "secret" not in reply.text
    assert desk.entries[-1].request in reply.json()["error"]
    assert desk.entries[-1].status == 500


def test_who_is_refused_again_and_again_fills_no_log(desk: Desk) -> None:
    for _ in range(REFUSED_BURST + 20):
        assert desk.ask("eve", "POST", "/v1/jobs/anns/cancel").status_code == 403
    assert [(each.status, each.count) for each in desk.entries] == [(403, 1)] * REFUSED_BURST
    desk.ask("ann", "POST", "/v1/jobs/anns/scale", json={"desired": 2})
    assert desk.entries[-1].user == "ann"


def test_what_is_folded_is_counted() -> None:
    folded = Folded(2, 1 / 60)
    assert [folded.count("a", 0.0) for _ in range(5)] == [1, 1, 0, 0, 0]
    assert (folded.count("b", 0.0), folded.count("a", 60.0), folded.count("a", 120.0)) == (1, 4, 1)


def test_one_token_makes_one_plan_at_a_time(desk: Desk) -> None:
    now, most = 0, 0

    async def slow() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1

    desk.app.add_api_route("/v1/slow", slow, methods=["POST"], openapi_extra=rules.may(Action.PLAN))

    async def three(users: str) -> list[int]:
        transport = httpx.ASGITransport(desk.app, client=("192.0.2.7", 4000))
        async with httpx.AsyncClient(transport=transport, base_url="http://spotsupd") as http:
            headers = [{"authorization": f"Bearer {token_text(IDS[user], SECRET)}"} for user in users.split()]
            replies = await asyncio.gather(*(http.post("/v1/slow", headers=each) for each in headers))
            return [reply.status_code for reply in replies]

    assert asyncio.run(three("ann ann ann")) == [200] * 3
    assert most == 1
    assert asyncio.run(three("ann bob ann")) == [200] * 3
    assert most == 2


def test_people_read_who_did_what() -> None:
    row = {
        "at": 0.0,
        "request": "f" * 16,
        "user": "ann",
        "token": IDS["ann"],
        "address": "192.0.2.7",
        "action": "POST /v1/jobs/{name}/scale",
        "target": "anns",
        "status": 200,
        "count": 1,
    }
    assert audit_line({**row, "status": 403, "count": 7}).endswith("scale anns: refused 7 times (403)")
    assert audit_line(row) == f"1970-01-01 00:00:00  ann ({IDS['ann']} at 192.0.2.7)  scale anns"
    assert audit_line({**row, "token": "", "user": "", "status": 403}) == (
        "1970-01-01 00:00:00  unknown  scale anns: refused (403)"
    )
    assert audit_line({**row, "token": "", "action": "POST /v1/new", "target": "", "status": 500}) == (
        "1970-01-01 00:00:00  ann  POST /v1/new: failed"
    )


# -- hostile requests --------------------------------------------------------------------------------------------------

HOSTILE: dict[str, tuple[dict[str, str], int]] = {
    "no scheme": ({"authorization": token_text(IDS["root"], SECRET)}, 401),
    "another scheme": ({"authorization": f"Basic {token_text(IDS['root'], SECRET)}"}, 401),
    "an expired token": ({"authorization": f"Bearer {token_text(IDS['old'], SECRET)}"}, 401),
    "a wrong secret": ({"authorization": f"Bearer {token_text(IDS['root'], bytes(32))}"}, 401),
    "the stored hash": ({"authorization": f"Bearer spotsup_{IDS['root']}_{sha256_of(SECRET)}"}, 401),
    "an unknown id": ({"authorization": f"Bearer {token_text('9' * 12, SECRET)}"}, 401),
    "a token in a cookie": ({"cookie": f"token={token_text(IDS['root'], SECRET)}"}, 401),
    "forwarded for the socket": ({"x-forwarded-for": "uid", "x-forwarded-proto": "https"}, 401),
    "a name in a header": ({"x-remote-user": "root", "x-forwarded-user": "root"}, 401),
    "a method in a header": ({"x-http-method-override": "GET"}, 401),
}


def test_nobody_is_let_in_by_a_header(desk: Desk) -> None:
    desk.users.failed = Throttle(1000, 1.0)
    for attack, (headers, status) in HOSTILE.items():
        reply = desk.ask("", "POST", "/v1/daemon/pause", json={}, headers=headers)
        assert reply.status_code == status, attack
        assert service(desk.world).daemons.paused is None, attack


def test_two_authorizations_are_none(desk: Desk) -> None:
    text = f"Bearer {token_text(IDS['root'], SECRET)}"

    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(desk.app, client=("192.0.2.7", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            return await http.get("/v1/jobs", headers=[("authorization", text), ("authorization", text)])

    assert asyncio.run(call()).status_code == 401


PATHS = [
    "/v1/jobs/%2e%2e/nodes",
    "/v1/jobs/..%2f..%2fdaemon/pause",
    "/v1/jobs/anns%2fcancel",
    "/v1//jobs/anns/cancel",
    "/v1/jobs/anns/cancel/",
    "/V1/jobs/anns/cancel",
    "/v1/jobs/anns%00/cancel",
    "/v1/jobs/ANNS/cancel",
    "/v1/jobs/anns.1/cancel",
    "/v1/jobs/anns.0/cancel",
    "/v1/jobs/%61nns/cancel",
    "/v1/jobs/anns;x=1/cancel",
    "/v1/jobs/anns%20/cancel",
    "/v1/jobs/" + "a" * 5000 + "/cancel",
]


def test_no_spelling_of_a_path_cancels_somebody_elses_job(desk: Desk) -> None:
    for path in PATHS:
        assert desk.ask("bob", "POST", path, json={}).status_code in {307, 403, 404, 405, 409}, path
        assert not jobs_of(desk.world)["anns"].record.cancel_requested, path


BOMBS: dict[str, tuple[bytes, dict[str, str], int]] = {
    "deep": (b"[" * 100_000, {}, 422),
    "deep in a job": (b'{"spec":' + b'{"a":' * 5000 + b"1" + b"}" * 5001, {}, 422),
    "large": (b" " * (MAX_BODY_BYTES + 1), {}, 413),
    "a large number": (b'{"desired":1' + b"0" * 5000 + b"}", {}, 422),
    "not a number": (b'{"desired":NaN}', {}, 422),
    "no JSON": (b"\xff\xfe", {}, 422),
    "a length that is none": (b"{}", {"content-length": "1e3"}, 413),
    "a negative length": (b"{}", {"content-length": "-1"}, 413),
    "chunks": (b"{}", {"transfer-encoding": "chunked"}, 413),
}


def test_a_bomb_is_refused(desk: Desk) -> None:
    for bomb, (content, headers, status) in BOMBS.items():
        for path in ("/v1/check", "/v1/jobs/anns/scale"):
            named = {"content-type": "application/json", **headers}
            reply = desk.ask("ann", "POST", path, content=content, headers=named)
            assert reply.status_code in {400, status}, f"{bomb}: {reply.text}"
            assert len(reply.content) < 2000, bomb


def test_only_so_much_code_is_in_memory_at_a_time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit_routes, "MAX_UPLOADS", 1)
    busy = Desk(desk.world)
    started, go_on = threading.Event(), threading.Event()
    store = Journal.put_blob

    def slow(journal: Journal, data: bytes, user: str) -> str:
        started.set()
        assert go_on.wait(30.0)
        return store(journal, data, user)

    monkeypatch.setattr(Journal, "put_blob", slow)
    first: list[int] = []
    thread = threading.Thread(
        target=lambda: first.append(busy.ask("ann", "PUT", "/v1/blobs", content=b"a").status_code)
    )
    thread.start()
    assert started.wait(30.0)
    second = busy.ask("bob", "PUT", "/v1/blobs", content=b"b")
    go_on.set()
    thread.join(30.0)
    assert (second.status_code, "try again in a moment" in second.json()["error"]) == (503, True)
    assert first == [200]
    assert busy.ask("bob", "PUT", "/v1/blobs", content=b"b").status_code == 200


def test_a_right_token_is_let_in_however_many_wrong_ones_came_from_its_address(desk: Desk) -> None:
    wrong = {"authorization": f"Bearer {token_text(IDS['root'], bytes(32))}"}
    codes = [desk.ask("", "GET", "/v1/health", headers=wrong).status_code for _ in range(FAILED_BURST + 2)]
    assert codes == [*[401] * FAILED_BURST, 429, 429]
    assert desk.ask("root", "GET", "/v1/health").status_code == 200


def test_a_token_that_is_used_too_often_has_to_wait_and_others_do_not(desk: Desk) -> None:
    desk.users.per_token = Throttle(3, 0.001)
    codes = [desk.ask("eve", "GET", "/v1/me").status_code for _ in range(4)]
    assert codes == [200, 200, 200, 429]
    assert desk.ask("ann", "GET", "/v1/me").json() == {"name": "ann", "role": "submitter", "token": IDS["ann"]}
