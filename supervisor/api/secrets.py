"""Users' secrets: set, listed and deleted. Values come in, and go out to the nodes of their owner's jobs alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict  # pydantic takes that of typing from Python 3.12 on

from supervisor.access import Action, Caller, Role
from supervisor.api.security.gate import caller_of_request
from supervisor.api.security.rules import may
from supervisor.errors import CommandRefusedError, ForbiddenError, NotFoundError, UsageError
from supervisor.identity import Identity
from supervisor.journal.journal import Journal
from supervisor.runtime.clock import Clock
from supervisor.sealed import MAX_BYTES, MAX_OF_OWNER, NONCE_BYTES, SecretRecord, check_name, check_value, seal

MAX_TRIES = 5


class SecretRow(TypedDict):
    """A secret without its value. `jobs`: its owner's jobs that have not ended and name it."""

    name: str
    owner: str
    created_at: float
    changed_at: float
    jobs: list[str]


class SecretBody(BaseModel):
    """A secret's value."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    value: str = Field(repr=False, max_length=MAX_BYTES)


@dataclass(frozen=True, slots=True)
class Secrets:
    """The verbs, over the journal. `nonce`: random bytes."""

    journal: Journal
    identity: Identity
    clock: Clock
    nonce: Callable[[int], bytes] = os.urandom

    def set(self, caller: Caller, name: str, value: str) -> SecretRow:
        """Store a secret of the caller, or another value of it. Raises UsageError, CommandRefusedError."""
        if not caller.name:
            raise UsageError("who you are is not known, and a secret has an owner: `spotsupctl login` with a token")
        try:
            data = check_value(check_name(name), value)
        except ValueError as error:
            raise UsageError(str(error)) from error
        for _ in range(MAX_TRIES):
            present = {each.name: (each, revision) for each, revision in self.journal.secrets(caller.name)}
            if name not in present and len(present) >= MAX_OF_OWNER:
                raise CommandRefusedError(f"{caller.name} has {MAX_OF_OWNER} secrets: `spotsupctl secret delete` some")
            now = self.clock.now()
            before, revision = present.get(name, (None, 0))
            record = SecretRecord(name, caller.name, "", before.created_at if before else now, now)
            nonce = self.nonce(NONCE_BYTES)
            record = seal(self.identity.secrets_key(), nonce, self.journal.keys.cluster, record, data)
            if self.journal.put_secret(record, revision):
                return self._row(record)
        raise CommandRefusedError(f"the secret {name} changes too fast to be stored; try again")

    def list(self, caller: Caller) -> list[SecretRow]:
        """Return the caller's secrets; of an admin those of all users."""
        is_admin = caller.role is Role.ADMIN
        found = self.journal.all_secrets() if is_admin else self.journal.secrets(caller.name) if caller.name else []
        return [self._row(each) for each, _ in sorted(found, key=lambda found: (found[0].owner, found[0].name))]

    def delete(self, caller: Caller, name: str, owner: str = "") -> SecretRow:
        """Delete a secret of the caller; an admin may delete those of an `owner`. Raises NotFoundError."""
        owner = owner or caller.name
        if owner != caller.name and caller.role is not Role.ADMIN:
            raise ForbiddenError(f"the secret {name} is of {owner}: ask them, or an admin")
        for _ in range(MAX_TRIES):
            found = next((each for each in self.journal.secrets(owner) if each[0].name == name), None)
            if found is None:
                raise NotFoundError(f"{owner or 'nobody'} has no secret {name}; `spotsupctl secret list` shows all")
            if self.journal.delete_secret(*found):
                return self._row(found[0])
        raise CommandRefusedError(f"the secret {name} changes too fast to be deleted; try again")

    def _row(self, secret: SecretRecord) -> SecretRow:
        jobs = [view.record for view in self.journal.read().jobs.values() if not view.record.ended]
        using = [job.name for job in jobs if job.owner == secret.owner and secret.name in job.spec.secrets]
        return {
            "name": secret.name,
            "owner": secret.owner,
            "created_at": secret.created_at,
            "changed_at": secret.changed_at,
            "jobs": using,
        }


def add_secrets(app: FastAPI, secrets: Secrets) -> None:
    """Add the routes."""

    @app.get("/v1/secrets", openapi_extra=may(Action.READ))
    def list_secrets(request: Request) -> list[SecretRow]:
        return secrets.list(caller_of_request(request))

    @app.post("/v1/secrets/{name}", openapi_extra=may(Action.SUBMIT))
    def set_secret(name: str, body: SecretBody, request: Request) -> SecretRow:
        return secrets.set(caller_of_request(request), name, body.value)

    @app.post("/v1/secrets/{name}/delete", openapi_extra=may(Action.SUBMIT))
    def delete_secret(name: str, request: Request, owner: str = "") -> SecretRow:
        return secrets.delete(caller_of_request(request), name, owner)
