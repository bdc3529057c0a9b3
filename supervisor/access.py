"""Who may do what through the API: callers, their roles, tokens, and the rule. Pure."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from enum import StrEnum

USER_NAME = r"[A-Za-z_][\w.-]{0,63}"
# `spotsup_`, the token's public id, and 32 random bytes: nothing to guess, so a fast hash is enough to store it.
_TOKEN = re.compile(r"spotsup_([0-9a-f]{12})_([0-9a-f]{64})", re.ASCII)
# What is compared where no token has the id, so that the answer takes as long.
_NO_HASH = "0" * 64


class Role(StrEnum):
    """What the holder of a token may do; each role may do what the one before may."""

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    ADMIN = "admin"


class Action(StrEnum):
    """What a route does."""

    # Shows what everyone may know who can connect, also without a token.
    PUBLIC = "public"
    # Shows jobs, nodes, logs, events, costs.
    READ = "read"
    # Asks clouds what a job would get.
    PLAN = "plan"
    # Brings a job.
    SUBMIT = "submit"
    # Changes a job, or one of its nodes.
    CHANGE = "change"
    # Logs in to a node of a job.
    LOGIN = "login"
    # Concerns the installation: the daemons, its machines, who did what.
    OPERATE = "operate"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request."""

    # "" where it is not known.
    name: str
    role: Role
    # The id of the token; "" on the Unix socket.
    token: str = ""


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A token as it is stored: never itself, only its hash."""

    id: str
    user: str
    role: Role
    # SHA-256 of the secret part.
    sha256: str
    created_at: float
    expires_at: float

    def is_valid(self, now: float) -> bool:
        """True if it has not expired."""
        return now < self.expires_at

    def caller(self) -> Caller:
        """Return who shows it."""
        return Caller(self.user, self.role, self.id)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """What a caller of the API did, and what came of it."""

    at: float
    # The id of the request, which its answer carried.
    request: str
    user: str
    # The id of the token; "" on the Unix socket.
    token: str
    # Its address; "" on the Unix socket.
    address: str
    # `METHOD /path` as the routes have it.
    action: str
    # The job or the node, "" where it was about none.
    target: str
    # The HTTP status of the answer.
    status: int
    # How many such requests it stands for: refused ones are not written one by one.
    count: int = 1


def token_text(token_id: str, secret: bytes) -> str:
    """Return the token as its user gets it. `secret`: 32 random bytes."""
    return f"spotsup_{token_id}_{secret.hex()}"


def sha256_of(secret: bytes) -> str:
    """Return what is stored of a token's secret part."""
    return hashlib.sha256(secret).hexdigest()


def id_of(text: str) -> str:
    """Return the id in a token's text; "" for what is no token."""
    found = _TOKEN.fullmatch(text)
    return found[1] if found else ""


def caller_of(text: str, stored: TokenRecord | None, now: float) -> Caller | None:
    """Return who shows this token; None if it is forged, has expired, or was revoked. `stored`: the record with its
    id."""
    found = _TOKEN.fullmatch(text)
    secret = bytes.fromhex(found[2]) if found else b""
    fits = hmac.compare_digest(sha256_of(secret), stored.sha256 if stored else _NO_HASH)
    return stored.caller() if found and stored and fits and stored.is_valid(now) else None


def refusal(caller: Caller, action: Action, owner: str | None = None) -> str:
    """Return why a caller may not do this, in one sentence; "" if it may. `owner`: of the job that it is about, None
    where there is none."""
    match action:
        case Action.PUBLIC | Action.READ:
            return ""
        case Action.OPERATE:
            return "" if caller.role is Role.ADMIN else f"{_who(caller)}: this is for admins, ask one"
        case Action.PLAN | Action.SUBMIT:
            return "" if caller.role is not Role.VIEWER else f"{_who(caller)}, and may only look: ask for a submitter's"
        case Action.CHANGE | Action.LOGIN:
            if caller.role is Role.ADMIN:
                return ""
            if caller.role is Role.VIEWER:
                return f"{_who(caller)}, and may only look: ask for a submitter's"
            if owner is not None and (not owner or owner != caller.name):
                whose = f"of {owner}" if owner else "nobody's"
                return f"{_who(caller)}, and the job is {whose}: ask its owner, or an admin"
            return ""


def _who(caller: Caller) -> str:
    if not caller.token:
        return f"{caller.name or 'the caller'} is no admin"
    article = "an" if caller.role is Role.ADMIN else "a"
    return f"the token of {caller.name} is {article} {caller.role}'s"
