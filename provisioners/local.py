"""The local cloud as a provisioner: HTTP to the `spotsup-localcloud` of one directory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from provisioners.base import (
    Coverage,
    Fatal,
    Finding,
    Instance,
    Launched,
    LaunchOutcome,
    LaunchRequest,
    Leftover,
    NoCapacity,
    Offer,
    OfferQuery,
    Owner,
    ProvisionerError,
    Quota,
    Scope,
    Throttled,
    Transient,
    Unknown,
    UnreachableError,
)
from provisioners.calls import NoAnswerError, NotSentError
from provisioners.localcloud.client import Answer, call
from provisioners.localcloud.machine.spec import Folder
from provisioners.localcloud.models import LaunchBody, OfferView, Refusal, View, sentence
from provisioners.readings import read_each

Parsed = TypeVar("Parsed")

_VIEWS = TypeAdapter(list[dict[str, Any]])
_OFFERS = TypeAdapter(list[OfferView])
_CONSOLE_CHARACTERS = 65536


class LocalProvisioner:
    """A Provisioner over the cloud in `directory`. Machines take logins as the user who runs that cloud."""

    name = "local"

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def offers(self, query: OfferQuery, timeout_s: float) -> Sequence[Offer]:
        """As the protocol says."""
        answer = self._read("GET", "/v1/offers", timeout_s)
        found = _parsed(_OFFERS, answer)
        fitting = [_offer(each) for each in found if _fits(each, query)]
        return sorted(fitting, key=lambda offer: (offer.usd_per_hour or 0.0, offer.instance_type, offer.zone))

    def launch(self, request: LaunchRequest, timeout_s: float) -> LaunchOutcome:
        """As the protocol says."""
        try:
            body = _body(request).model_dump_json()
        except ValidationError as error:
            return Fatal(f"the local cloud does not take such a request: {sentence(error)}")
        try:
            answer = call(self._directory, "POST", "/v1/launch", timeout_s=timeout_s, body=body)
        except NotSentError as error:
            return Transient(str(error))
        except NoAnswerError as error:
            return Unknown(str(error))
        return _outcome(answer)

    def find(self, owner: Owner, token: str, timeout_s: float) -> Instance | None:
        """As the protocol says; a listing lag holds here too."""
        found = self._views({**_params(owner), "token": token}, timeout_s)
        return found[0] if found else None

    def instances(self, owner: Owner | None, timeout_s: float) -> Sequence[Instance]:
        """As the protocol says."""
        return self._views(_params(owner), timeout_s)

    def coverage(self, timeout_s: float) -> Coverage:  # noqa: ARG002 - the protocol's
        """Return that there is but one account, and all regions are listed."""
        return Coverage()

    def terminate(self, instance_id: str, timeout_s: float) -> None:
        """As the protocol says."""
        self._read("POST", f"/v1/machines/{quote(instance_id, safe='')}/terminate", timeout_s, missing_is_fine=True)

    def leftovers(self, owner: Owner, timeout_s: float) -> Sequence[Leftover]:  # noqa: ARG002 - the protocol's
        """Return none: a machine here takes all it has with it."""
        return ()

    def remove(self, leftover: Leftover, timeout_s: float) -> None:
        """Nothing is ever left over."""

    def console(self, instance_id: str, timeout_s: float) -> str:
        """Return the machine's log; it stays for as long as the cloud knows of the machine."""
        if any(view.id == instance_id for view in self._views({}, timeout_s)):
            log = Folder(self._directory / "machines" / instance_id).log
            if log.exists():
                return log.read_text(errors="replace")[-_CONSOLE_CHARACTERS:]
        return ""

    def check(self, timeout_s: float) -> Sequence[Finding]:
        """Check whether the cloud answers, and what it has room for."""
        try:
            offers = self.offers(OfferQuery(), timeout_s)
        except ProvisionerError as error:
            return [Finding("local cloud", ok=False, message=str(error))]
        return [Finding("local cloud", ok=True, message=f"it answers, with {len(offers)} offers of machines")]

    def _views(self, params: dict[str, str], timeout_s: float) -> list[Instance]:
        listed = _parsed(_VIEWS, self._read("GET", "/v1/machines", timeout_s, params=params))
        return read_each(listed, read_machine, lambda each: each["id"])

    def _read(
        self,
        method: str,
        path: str,
        timeout_s: float,
        *,
        params: dict[str, str] | None = None,
        missing_is_fine: bool = False,
    ) -> Answer:
        try:
            answer = call(self._directory, method, path, timeout_s=timeout_s, params=params)
        except (NotSentError, NoAnswerError) as error:
            raise UnreachableError(str(error)) from error
        if answer.status == 200 or (missing_is_fine and answer.status == 404):
            return answer
        raise ProvisionerError(f"the local cloud in {self._directory} refused {method} {path}: {_refusal(answer)}")


def _parsed(kind: TypeAdapter[Parsed], answer: Answer) -> Parsed:
    try:
        return kind.validate_json(answer.content)
    except ValidationError as error:
        raise ProvisionerError(f"the local cloud answered what it should not: {sentence(error)}") from error


def _params(owner: Owner | None) -> dict[str, str]:
    return {"cluster": owner.cluster, "key_mark": owner.key_mark} if owner else {}


def _body(request: LaunchRequest) -> LaunchBody:
    return LaunchBody(
        token=request.token,
        cluster=request.owner.cluster,
        key_mark=request.owner.key_mark,
        node=request.node,
        region=request.offer.region,
        zone=request.offer.zone,
        instance_type=request.offer.instance_type,
        market=request.offer.market,
        host_key_public=request.host_key.public,
        host_key_private=request.host_key.private_openssh,
        authorized_keys=request.authorized_keys,
        tags=dict(request.tags),
    )


def _outcome(answer: Answer) -> LaunchOutcome:
    try:
        if answer.status == 200:
            return Launched(_instance(View.model_validate_json(answer.content)))
        refusal = Refusal.model_validate_json(answer.content)
    except ValidationError:
        # It failed somewhere between taking the request and answering it.
        return Unknown(f"the local cloud answered {answer.status} with {answer.text[:200]!r}")
    match refusal.kind:
        case "no-capacity":
            return NoCapacity(Scope(refusal.scope), refusal.after_s, refusal.message)
        case "quota":
            return Quota(Scope(refusal.scope), refusal.after_s, refusal.message)
        case "throttled":
            return Throttled(refusal.after_s, refusal.message)
        case "transient":
            return Transient(refusal.message)
        case _:
            return Fatal(refusal.message)


def _refusal(answer: Answer) -> str:
    try:
        return Refusal.model_validate_json(answer.content).message
    except ValidationError:
        return f"{answer.status} {answer.text[:200]}"


def _fits(offer: OfferView, query: OfferQuery) -> bool:
    return (
        offer.market is query.market
        and (not query.gpu or offer.gpu == query.gpu)
        and offer.gpus >= query.gpus_per_node
        and (not query.instance_types or offer.instance_type in query.instance_types)
        and (not query.regions or offer.region in query.regions)
        and (not query.zones or offer.zone in query.zones)
    )


def _offer(offer: OfferView) -> Offer:
    return Offer(
        cloud="local",
        region=offer.region,
        zone=offer.zone,
        instance_type=offer.instance_type,
        market=offer.market,
        usd_per_hour=offer.usd_per_hour,
        gpu=offer.gpu,
        gpus=offer.gpus,
        price_source="local",
        lasts_s=offer.lasts_s,
    )


def read_machine(raw: dict[str, Any]) -> Instance:
    """Return one machine of a listing. Raises ValidationError."""
    return _instance(View.model_validate_json(json.dumps(raw)))


def _instance(view: View) -> Instance:
    its = view.model_dump(exclude={"cluster", "key_mark", "market", "frozen", "message"})
    return Instance(owner=Owner(view.cluster, view.key_mark), **its)
