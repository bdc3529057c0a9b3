"""What a job's nodes would have done to them, step by step: said before anything is submitted.

No machine is there to be asked, so its facts are assumed, and the assumptions are told (bootstrap/assumed.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field

from provisioners.base import Market, Offer
from supervisor.api.quote import Quote, quote_row
from supervisor.api.service import MAX_BLOB_BYTES, Service, new_job
from supervisor.config import Config
from supervisor.errors import UsageError
from supervisor.model import NodeRecord
from supervisor.nodes.prepare import pack_trainer, setup_of, user_of
from supervisor.spec import JobSpec, parse_spec

if TYPE_CHECKING:
    from bootstrap import Archive, Setup
    from bootstrap.environment.lock import Lock
    from bootstrap.model import Command
    from bootstrap.steps import PlannedStep

MAX_KINDS = 3


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class LockBody(_Body):
    """What an environment is built from: `bootstrap.model.Lock`."""

    kind: Literal["requirements", "uv"]
    file: str = Field(min_length=1, max_length=1024)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class ExplainBody(_Body):
    """A job file's content, and of its code what names it: the code itself stays with its user."""

    spec: dict[str, Any]
    code_sha256: str = Field(pattern="^[0-9a-f]{64}$")
    code_bytes: int = Field(ge=0, le=MAX_BLOB_BYTES)
    lock: LockBody | None = None


@dataclass(frozen=True, slots=True)
class Explained:
    """What is done to machines of these `types`, and what was assumed of them. `steps`: as JSON."""

    types: tuple[str, ...]
    gpu: str
    gpus: int
    assumed: tuple[str, ...]
    steps: tuple[dict[str, Any], ...]


class Explainer:
    """Over a daemon's configuration."""

    def __init__(self, config: Config, home: str) -> None:
        """`home`: of the daemon's own user, which is that of machines of the local cloud."""
        self._config = config
        self._home = home

    def explain(self, spec: JobSpec, quote: Quote, body: ExplainBody) -> list[Explained]:
        """One for each kind of machine among the first offers; those to which the same is done are told together.

        Raises UsageError.
        """
        from bootstrap.archive import Archive
        from bootstrap.environment.lock import Lock

        # Only its name and its size matter: it is not here.
        code = Archive(body.code_sha256, bytes(body.code_bytes))
        lock = Lock(**body.lock.model_dump()) if body.lock else None
        try:
            found = [self._of(offer, spec, code, lock) for offer in kinds(quote, spec)]
        except ValueError as error:
            raise UsageError(f"{spec.name} cannot be prepared as it is: {error}") from error
        alike: dict[str, Explained] = {}
        for each in found:
            key = repr((each.steps, each.assumed))
            alike[key] = replace(each, types=(*alike[key].types, *each.types)) if key in alike else each
        return list(alike.values())

    def _of(self, offer: Offer, spec: JobSpec, code: Archive, lock: Lock | None) -> Explained:
        from bootstrap import plan
        from bootstrap.assumed import assumed

        job = new_job(spec, code.sha256, "explained", 0.0)
        node = NodeRecord(f"{job.task_id}-1", job.name, "", offer, 0.0)
        setup: Setup = setup_of(self._config, node, job, (), code, pack_trainer(), lock)
        user = user_of(self._config, node)
        settings = self._config.cloud(offer.cloud)
        on_host = settings is not None and settings.on_this_host
        home = self._home if on_host else "/root" if user == "root" else f"/home/{user}"
        guess = assumed(setup, user, home)
        steps = tuple(step_row(step) for step in plan(guess.facts, setup))
        return Explained((offer.instance_type,), setup.host.gpu, setup.host.gpus, guess.words, steps)


def kinds(quote: Quote, spec: JobSpec) -> list[Offer]:
    """The first offer of each instance type, at most three; where no offer is known, what the job asks for."""
    found: dict[str, Offer] = {}
    for offer in quote.offers:
        found.setdefault(offer.instance_type, offer)
    if found:
        return list(found.values())[:MAX_KINDS]
    wish = spec.resources
    named = next(iter(wish.instance_types), "unknown")
    return [Offer(spec.placement.cloud, "", "", named, Market.SPOT, None, gpu=wish.gpu, gpus=wish.gpus_per_node)]


def step_row(step: PlannedStep) -> dict[str, Any]:
    """As JSON. What is uploaded is named and never shown: it may hold secrets."""
    from bootstrap.model import Skip, Unfit

    match step.decision:
        case Skip(reason):
            return {"step": step.name, "nothing": reason}
        case Unfit(reason):
            return {"step": step.name, "impossible": reason}
        case commands:
            return {"step": step.name, "commands": [_command_row(command) for command in commands]}


def _command_row(command: Command) -> dict[str, Any]:
    from bootstrap.model import Reboot, Run, Upload

    row: dict[str, Any] = {"kind": type(command).__name__.lower(), "what": str(command)}
    match command:
        case Run():
            row |= {"as_root": command.as_root, "timeout_s": command.timeout_s, "script": command.script.strip()}
        case Reboot():
            row |= {"as_root": True, "timeout_s": command.timeout_s}
        case Upload():
            row |= {"path": command.path, "bytes": len(command.data)}
        case _:
            pass
    return row


def add_explain(app: FastAPI, service: Service, explainer: Explainer) -> None:
    """`/v1/explain`: what `plan` says, and the steps."""

    @app.post("/v1/explain")
    def explain(body: ExplainBody) -> dict[str, Any]:
        quote = service.plan(body.spec)
        explained = explainer.explain(parse_spec(body.spec), quote, body)
        rows = [
            {
                "instance_types": list(each.types),
                "gpu": each.gpu or None,
                "gpus": each.gpus,
                "assumed": list(each.assumed),
                "steps": list(each.steps),
            }
            for each in explained
        ]
        return {**quote_row(quote), "kinds": rows}
