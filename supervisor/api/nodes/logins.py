"""The API's route that lets people log in to nodes: it signs their own key, for this node and five minutes."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from fastapi import FastAPI, Request
from pydantic import Field

from bootstrap.model import Paths
from supervisor.access import Action
from supervisor.api.body import RequestBody
from supervisor.api.jobs.reading import Jobs
from supervisor.api.problems import REQUEST_ID
from supervisor.api.rows import LoginRow
from supervisor.api.security.gate import caller_of_request
from supervisor.api.security.rules import may
from supervisor.config import Config
from supervisor.errors import CommandRefusedError
from supervisor.identity import Identity
from supervisor.logins import MAX_KEY_CHARACTERS, VALID_S, Login, certificate, public_key
from supervisor.model import NodeRecord, NodeState
from supervisor.nodes.prepare import user_of
from supervisor.runtime.clock import Clock

SSH_PORT = 22
_NO_ADDRESS = frozenset({NodeState.TERMINATING, NodeState.GONE})


class LoginBody(RequestBody):
    """The caller's public key, one line of a .pub file. The private one never leaves their computer."""

    public_key: str = Field(max_length=MAX_KEY_CHARACTERS)


def login_row(config: Config, identity: Identity, node: NodeRecord, login: Login) -> LoginRow:
    """Return how to log in to a node: address, user, the host key it must have, and a certificate for the caller's own
    key; and where its agent's configuration is.

    Raises CommandRefusedError without an address, UsageError for a key that is none.
    """
    if not node.ssh_host or node.state in _NO_ADDRESS:
        raise CommandRefusedError(
            f"node {node.id} is {node.state} and has no address to connect to; `spotsupctl nodes` "
            "shows those that have one"
        )
    key, machine, port = public_key(login.public_key), node.machine_name, node.ssh_port
    host = node.ssh_host if port == SSH_PORT else f"[{node.ssh_host}]:{port}"  # man 8 sshd, SSH_KNOWN_HOSTS
    return {
        "host": node.ssh_host,
        "port": port,
        "user": user_of(config, node),
        "known_hosts": f"{host} {identity.host_key(machine).public}\n",
        "certificate": certificate(identity.login_ca(), key, login.who, machine, login.at, login.serial),
        "expires_at": login.at + VALID_S,
        "agent_config": Paths(config.node.root, node.id).agent_config,
    }


def add_logins(app: FastAPI, jobs: Jobs, login: Callable[[NodeRecord, Login], LoginRow], clock: Clock) -> None:
    """`login`: login_row of this installation."""

    @app.post("/v1/nodes/{node}/login", openapi_extra=may(Action.LOGIN))
    def log_in(node: str, body: LoginBody, request: Request) -> LoginRow:
        caller = caller_of_request(request)
        who = f"{caller.name or 'unknown'} {request.scope[REQUEST_ID]}"
        return login(jobs.node(node), Login(body.public_key, who, clock.now(), secrets.randbits(63)))
