"""etcd's users, roles and tokens, as its JSON gateway answers about them, and the real client in front of it."""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spotsup_trainer.etcd import Etcd
from spotsup_trainer.wire import Keys

if TYPE_CHECKING:
    from supervisor.simulation.etcd import SimEtcd

# grpc's codes, as etcd sends them.
_INVALID, _FAILED, _UNAUTHENTICATED = 3, 9, 16
DAEMON_USER = "daemon"
MAX_UNDONE = 300


@dataclass(frozen=True)
class State:
    """`users`: passwords and roles, by name. `roles`: what each may do."""

    users: Mapping[str, tuple[str, frozenset[str]]] = field(default_factory=dict)
    roles: Mapping[str, frozenset[tuple[str, str, str]]] = field(default_factory=dict)


class RefusedError(Exception):
    """etcd refuses; with its code."""

    def __init__(self, message: str, code: int = _FAILED) -> None:
        super().__init__(message)
        self.code = code


class SimAccounts:
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
        """From now on it is so. `revision`: of the keys."""
        self._undo.append((revision, self.state))
        self.state = State(**{"users": self.state.users, "roles": self.state.roles, **changes})
        self.version += 1

    def may_use(self, name: str, password: str, grants: frozenset[tuple[str, str, str]]) -> bool:
        """Whether who logs in so may do all of that."""
        found = self.state.users.get(name)
        if found is None or found[0] != password:
            return False
        return grants <= frozenset().union(*(self.state.roles.get(role, frozenset()) for role in found[1]))

    def answer(self, token: str | None, path: str, body: dict[str, Any], revision: int) -> tuple[int, bytes]:
        """HTTP status and text."""
        try:
            return 200, json.dumps({"header": {"revision": "1"}} | self._answer(token, path, body, revision)).encode()
        except RefusedError as error:
            status = 401 if error.code == _UNAUTHENTICATED else 400
            return status, json.dumps({"error": str(error), "message": str(error), "code": error.code}).encode()

    def _answer(self, token: str | None, path: str, body: dict[str, Any], revision: int) -> dict[str, Any]:
        what = path.removeprefix("/v3/auth/")
        if what == "authenticate":
            self._issued += 1
            made = f"token.{self._issued}"
            self._tokens[made] = body["name"]
            return {"token": made}
        if token not in self._tokens:
            raise RefusedError("etcdserver: invalid auth token", _UNAUTHENTICATED)
        if self.stale_requests:
            self.stale_requests -= 1
            raise RefusedError("etcdserver: revision of auth store is old", _INVALID)
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
                    raise RefusedError("etcdserver: user name already exists")
                users[body["name"]] = body["password"], frozenset()
            case "role/add":
                if body["name"] in roles:
                    raise RefusedError("etcdserver: role name already exists")
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
        raise RefusedError(f"etcdserver: {what} name not found")
    return names[name]


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()


def grants_of(keys: Keys, job: str) -> frozenset[tuple[str, str, str]]:
    """What the nodes of a job have to be allowed."""
    return frozenset((grant.kind, grant.begin, grant.end) for grant in keys.grants(job))


class SimGateway(Etcd):
    """The real client: it logs in, again where its token has ended, and repeats what etcd refuses for others' changes.
    Only the wire is simulated."""

    def __init__(self, etcd: SimEtcd, connected: Callable[[], bool]) -> None:
        super().__init__(["http://etcd"], user=DAEMON_USER, password=DAEMON_USER)
        self._sim = etcd
        self._connected = connected
        # Runs before a request has its effect, and after it; what it raises is the request's end.
        self.before: Callable[[], None] = _nothing
        self.after: Callable[[], None] = _nothing

    def _exchange(self, index: int, path: str, payload: bytes) -> tuple[int, bytes]:
        if not self._connected():
            raise ConnectionRefusedError("etcd is down")
        self.before()
        answer = self._sim.accounts.answer(self._token, path, json.loads(payload), self._sim.revision)
        self.after()
        return answer


def _nothing() -> None:
    pass
