"""etcd's users, roles and tokens, as its JSON gateway answers about them."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spotsup_trainer.etcd import EtcdRefusedError
from spotsup_trainer.wire import Keys

# grpc's codes, as etcd sends them.
_INVALID, _FAILED, _UNAUTHENTICATED = 3, 9, 16
MAX_UNDONE = 300


@dataclass(frozen=True)
class State:
    """`users`: passwords and roles, by name. `roles`: what each may do."""

    users: Mapping[str, tuple[str, frozenset[str]]] = field(default_factory=dict)
    roles: Mapping[str, frozenset[tuple[str, str, str]]] = field(default_factory=dict)


class SimAuth:
    """The users of one etcd. They are rolled back with its keys; tokens are in its memory only."""

    def __init__(self) -> None:
        self.state = State()
        # Counts every change; that of etcd's own `auth revision`.
        self.version = 0
        # How many of the next requests find that users were changed meanwhile.
        self.stale_requests = 0
        self._tokens: dict[str, str] = {}
        self._issued = 0
        # Before each change: the revision of the keys then, and the state.
        self._undo: deque[tuple[int, State]] = deque(maxlen=MAX_UNDONE)

    def forget_tokens(self) -> None:
        """They have expired, or etcd was started again."""
        self._tokens.clear()

    def roll_back(self, revision: int) -> None:
        """Undo what was changed since the keys had this revision; of several changes at this one, some."""
        at_once = sum(at == revision for at, _ in self._undo)
        while self._undo and (self._undo[-1][0] > revision or at_once > revision % 5):
            at, self.state = self._undo.pop()
            at_once -= at == revision
        self.version += 1
        self.forget_tokens()

    def change(self, revision: int, **changes: Any) -> None:
        """Change it from now on. `revision`: of the keys."""
        self._undo.append((revision, self.state))
        self.state = State(**{"users": self.state.users, "roles": self.state.roles, **changes})
        self.version += 1

    def may_use(self, name: str, password: str, grants: frozenset[tuple[str, str, str]]) -> bool:
        """True if who logs in so may do all of that."""
        found = self.state.users.get(name)
        if found is None or found[0] != password:
            return False
        return grants <= frozenset().union(*(self.state.roles.get(role, frozenset()) for role in found[1]))

    def log_in(self, name: str) -> str:
        """Return a token."""
        self._issued += 1
        made = f"token.{self._issued}"
        self._tokens[made] = name
        return made

    def check(self, token: str | None) -> None:
        """Raise EtcdRefusedError for a token that is none, or has ended."""
        if token not in self._tokens:
            raise EtcdRefusedError("etcdserver: invalid auth token", _UNAUTHENTICATED)

    def manage(self, what: str, body: dict[str, Any], revision: int) -> dict[str, Any]:
        """Make a call about users and roles. `revision`: of the keys. Raises EtcdRefusedError."""
        if self.stale_requests:
            self.stale_requests -= 1
            raise EtcdRefusedError("etcdserver: revision of auth store is old", _INVALID)
        return self._do(what, body, revision)

    def _do(self, what: str, body: dict[str, Any], revision: int) -> dict[str, Any]:
        users, roles = dict(self.state.users), dict(self.state.roles)
        match what:
            case "user/list":
                return {"users": sorted(users)}
            case "role/list":
                return {"roles": sorted(roles)}
            case "user/get":
                return {"roles": sorted(_known(users, body["name"], "user")[1])}
            case "user/add":
                if body["name"] in users:
                    raise EtcdRefusedError("etcdserver: user name already exists", _FAILED)
                users[body["name"]] = body["password"], frozenset()
            case "role/add":
                if body["name"] in roles:
                    raise EtcdRefusedError("etcdserver: role name already exists", _FAILED)
                roles[body["name"]] = frozenset()
            case "role/grant":
                perm = body["perm"]
                span = perm["permType"], _text(perm["key"]), _text(perm["range_end"])
                roles[body["name"]] = _known(roles, body["name"], "role") | {span}
            case "user/grant":
                phrase, has = _known(users, body["user"], "user")
                _known(roles, body["role"], "role")
                users[body["user"]] = phrase, has | {body["role"]}
            case "user/delete":
                _known(users, body["name"], "user")
                del users[body["name"]]
            case "role/delete":
                _known(roles, body["role"], "role")
                del roles[body["role"]]
                users = {name: (phrase, has - {body["role"]}) for name, (phrase, has) in users.items()}
            case _:
                raise AssertionError(what)
        self.change(revision, users=users, roles=roles)
        return {}


def _known(names: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in names:
        raise EtcdRefusedError(f"etcdserver: {what} name not found", _FAILED)
    return names[name]


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()


def grants_of(keys: Keys, job: str) -> frozenset[tuple[str, str, str]]:
    """Return what the nodes of a job have to be allowed."""
    return frozenset((grant.kind, grant.begin, grant.end) for grant in keys.grants(job))
