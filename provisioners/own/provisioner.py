"""Machines that you already have as a provisioner: each call is an SSH connection to the hosts that it concerns.

A host is a region, so that one that is silent says nothing of the others; all are in one zone, so that a job may have
several. It is its own instance type: there is one of it.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from provisioners.base import (
    Coverage,
    EndCause,
    Fatal,
    Finding,
    Instance,
    InstanceState,
    Launched,
    LaunchOutcome,
    LaunchRequest,
    Leftover,
    NoCapacity,
    Offer,
    OfferQuery,
    Owner,
    PartialListingError,
    ProvisionerError,
    Scope,
    Unknown,
    UnreachableError,
)
from provisioners.calls import SHORTEST_S, Deadline, NoAnswerError, NotSentError
from provisioners.catalog import load_catalog
from provisioners.gpu_names import is_named
from provisioners.kept import Kept
from provisioners.own.answers import (
    Closed,
    Facts,
    Look,
    LookAtAll,
    Refused,
    digest_of,
    facts_of,
    machine_id,
    owner_of,
)
from provisioners.own.gone import gone_hosts
from provisioners.own.hours import NOTICE_S
from provisioners.own.login import HostError, SilentError, ask
from provisioners.own.settings import OwnHost, OwnSettings
from provisioners.readings import read_each

ZONE = "own"
FACTS_S = 30.0
BUSY_S = 60.0
ASKED_S = 86400.0
CLOSE_NOTICE_S = 180.0
"""For so long a node may go on, to leave in order, on a computer that one of its users wants."""
_WORTH_S = 600.0  # what a node needs to begin, and some work
_THREADS = 64
_ID = re.compile(r"own-([0-9a-f]{8})-[0-9]{12}")

Answer = TypeVar("Answer")


class Ask(Protocol):
    """`provisioners.own.login.ask`."""

    def __call__(
        self, name: str, settings: OwnSettings, request: Mapping[str, Any], timeout_s: float
    ) -> dict[str, Any]:
        """Return a host's answer. Raises NotSentError, NoAnswerError, HostError."""
        ...


@dataclass(slots=True)
class OwnProvisioner:
    """A Provisioner over the hosts of one configuration."""

    settings: OwnSettings
    ask: Ask = ask
    clock: Callable[[], float] = time.time
    _facts: Kept[str, tuple[Facts, Closed | None]] = field(default_factory=lambda: Kept(FACTS_S))
    _silent_since: dict[str, float] = field(default_factory=dict)
    _heard: set[str] = field(default_factory=set)
    # Which host was asked for a token's machine: no other one can have it.
    _asked: Kept[tuple[Owner, str], str] = field(default_factory=lambda: Kept(ASKED_S))
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _known: tuple[str, ...] = field(default_factory=lambda: tuple(load_catalog().gpus))

    @property
    def name(self) -> str:
        """Return the cloud's name in job files."""
        return "own"

    def offers(self, query: OfferQuery, timeout_s: float) -> Sequence[Offer]:
        """As the protocol says: the hosts that answer, fit, and may be used now. What is asked for is looked up."""
        if query.zones and ZONE not in query.zones:
            return []
        wanted = [name for name in self.settings.hosts if _is_named_in(name, query)]
        found, silent = self._each(wanted, self._facts_of, timeout_s)
        fitting = {name: closed for name, (facts, closed) in found.items() if _fits(facts, query)}
        if silent and not fitting:
            raise UnreachableError("; ".join(map(str, silent.values())))
        now = [
            self._offer(name, found[name][0], query) for name, closed in fitting.items() if self._is_open(name, closed)
        ]
        return sorted(now, key=lambda each: (each.usd_per_hour or 0.0, each.gpus, each.region))

    def launch(self, request: LaunchRequest, timeout_s: float) -> LaunchOutcome:
        """As the protocol says: the host of the offer is asked alone."""
        name = request.offer.region
        host = self.settings.hosts.get(name)
        if host is None or (request.offer.zone, request.offer.instance_type) != (ZONE, name):
            asked = f"{request.offer.instance_type} in {request.offer.zone}"
            return Fatal(f"there is no own host {asked}: each is its own type, in the zone {ZONE}, in [own.hosts]")
        if host.until(self.clock()) is None:
            return NoCapacity(Scope.TYPE_IN_ZONE, BUSY_S, f"the own host {name} may be used {host.available} only")
        self._asked.put((request.owner, request.token), self.clock(), name)
        try:
            answer = self.ask(name, self.settings, self._claim(request, host), timeout_s)
            if "claim" in answer:
                found = self._instance(name, None, answer["claim"])
                is_it = (found.node, found.token, found.owner) == (request.node, request.token, request.owner)
                return Launched(found) if is_it else Unknown(f"{name} answers with another claim, {found.id}")
            refused = Refused.model_validate(answer)
        except (NotSentError, HostError) as error:
            return NoCapacity(Scope.TYPE_IN_ZONE, BUSY_S, f"the own host {error}")
        except (NoAnswerError, KeyError, TypeError, ValueError) as error:
            return Unknown(f"{name}: {str(error)[:400]}")
        if refused.busy:
            return NoCapacity(Scope.TYPE_IN_ZONE, BUSY_S, f"the own host {name}: {refused.busy}")
        return (
            Fatal(f"{name}: {refused.fatal}") if refused.fatal else Unknown(f"{name} does not say whether it is ours")
        )

    def find(self, owner: Owner, token: str, timeout_s: float) -> Instance | None:
        """As the protocol says. Raises UnreachableError where it is on no host that answers, and some do not."""
        asked = self._asked.known((owner, token), self.clock())
        names = [asked[1]] if asked is not None and asked[1] in self.settings.hosts else list(self.settings.hosts)
        found, silent = self._listed(owner, timeout_s, names)
        ids = {machine_id(name, owner, token) for name in names}  # one that cannot be read may be it
        mine = next((each for each in found if each.id in ids), None)
        if mine is None and silent:
            raise UnreachableError("; ".join(silent.values()))
        return mine

    def instances(self, owner: Owner | None, timeout_s: float) -> Sequence[Instance]:
        """As the protocol says."""
        found, silent = self._listed(owner, timeout_s, self.settings.hosts)
        if silent and len(silent) == len(self.settings.hosts):
            raise UnreachableError("; ".join(silent.values()))
        if silent:
            raise PartialListingError(found, silent)
        return found

    def coverage(self, timeout_s: float) -> Coverage:  # noqa: ARG002 - the protocol's
        """Return the hosts that are configured."""
        return Coverage("", tuple(sorted(self.settings.hosts)))

    def terminate(self, instance_id: str, timeout_s: float) -> None:
        """As the protocol says: returns once nothing of it runs."""
        name = self._host_of(instance_id)
        if not name:
            self.instances(None, timeout_s)  # raises where nothing can be known
            return
        left = self._answer(name, {"do": "release", "id": instance_id}, timeout_s)["left"]
        if left:
            raise ProvisionerError(
                f"{name}: SIGKILL did not end the processes {str(left)[:200]} of {instance_id}; look at them there"
            )

    def leftovers(self, owner: Owner, timeout_s: float) -> Sequence[Leftover]:  # noqa: ARG002 - the protocol's
        """Return none: what is given back takes all it has with it."""
        return ()

    def remove(self, leftover: Leftover, timeout_s: float) -> None:
        """Nothing is ever left over."""

    def console(self, instance_id: str, timeout_s: float) -> str:
        """As the protocol says: the log of its init and its sshd."""
        name = self._host_of(instance_id)
        return str(self._answer(name, {"do": "console", "id": instance_id}, timeout_s)["text"]) if name else ""

    def check(self, timeout_s: float) -> Sequence[Finding]:
        """As the protocol says: one finding per host."""
        found, silent = self._each(self.settings.hosts, self._look_at, timeout_s)
        findings = {name: Finding(name, ok=False, message=str(why)) for name, why in silent.items()}
        for name, (facts, closed) in found.items():
            gpus = f"{len(facts.gpus)} × {facts.gpu}" if facts.gpus else "no GPU"
            now = "" if self._is_open(name, closed) else ", and may not be used now"
            message = "; ".join(facts.problems) or f"it lets us in, and has {gpus}{now}"
            findings[name] = Finding(name, ok=not facts.problems, message=message)
        return [findings[name] for name in self.settings.hosts]

    def close(self, host: str, until: float, timeout_s: float) -> None:
        """Give a computer to one of its users until then (UNIX seconds): its nodes get a notice, and none is begun.
        0 takes it back. Raises ProvisionerError."""
        if host not in self.settings.hosts:
            raise ProvisionerError(f"there is no own host {host}: they are {', '.join(sorted(self.settings.hosts))}")
        self._answer(host, {"do": "close", "since": self.clock(), "until": until}, timeout_s)
        self._facts = Kept(FACTS_S)

    # -- one host ------------------------------------------------------------------------------------------

    def _facts_of(self, name: str, timeout_s: float) -> tuple[Facts, Closed | None]:
        return self._facts.get(name, self.clock(), lambda: self._look_at(name, timeout_s))

    def _look_at(self, name: str, timeout_s: float) -> tuple[Facts, Closed | None]:
        found = LookAtAll.model_validate(self._answer(name, {"do": "look", "facts": True}, timeout_s))
        return facts_of(found.facts, self.settings.hosts[name], self._known), found.closed

    def _is_open(self, name: str, closed: Closed | None) -> bool:
        """True where a node that begins now can do some work before it has to leave."""
        now = self.clock()
        until = self.settings.hosts[name].until(now)
        is_closed = closed is not None and closed.until > now
        return until is not None and until - now > NOTICE_S + _WORTH_S and not is_closed

    def _answer(self, name: str, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Return a host's answer to what changes nothing, or may be asked again. Raises ProvisionerError."""
        try:
            return self.ask(name, self.settings, request, timeout_s)
        except (NotSentError, NoAnswerError) as error:
            raise UnreachableError(str(error)) from error

    def _listed(
        self, owner: Owner | None, timeout_s: float, names: Collection[str]
    ) -> tuple[list[Instance], dict[str, str]]:
        found, silent = self._each(names, self._look, timeout_s)
        read: list[Instance] = []
        for name, look in found.items():
            # A computer with several entries answers for all of them, and a hostile one for any.
            claims = [each for each in look.claims if _host_digest(each) == digest_of(name)]
            read += read_each(claims, partial(self._instance, name, look.closed), lambda each: each["id"])
        unreadable = InstanceState.UNREADABLE
        known = [each for each in read if owner is None or each.owner == owner or each.state is unreadable]
        gone = self._gone(found, silent)
        return known, {name: str(why) for name, why in silent.items() if name not in gone}

    def _look(self, name: str, timeout_s: float) -> Look:
        return Look.model_validate(self._answer(name, {"do": "look"}, timeout_s))

    def _gone(self, found: Collection[str], silent: Mapping[str, Exception]) -> Collection[str]:
        """Return the hosts that have not answered for so long that nothing of theirs runs any more."""
        now, computers = self.clock(), {name: each.address for name, each in self.settings.hosts.items()}
        with self._lock:
            self._heard |= set(found)
            for name in found:
                self._silent_since.pop(name, None)
            for name, why in silent.items():
                if isinstance(why.__cause__, SilentError):
                    self._silent_since.setdefault(name, now)
                else:  # it answers, and refuses
                    self._silent_since.pop(name, None)
            return gone_hosts(self._silent_since, self._heard, computers, now)

    def _each(
        self, names: Iterable[str], call: Callable[[str, float], Answer], timeout_s: float
    ) -> tuple[dict[str, Answer], dict[str, Exception]]:
        """Ask several hosts at once: (what they answer, why the others do not)."""
        asked, deadline = list(names), Deadline(timeout_s)
        found: dict[str, Answer] = {}
        silent: dict[str, Exception] = {}

        def one(name: str) -> None:
            try:
                found[name] = call(name, max(SHORTEST_S, deadline.left_s()))
            except (ProvisionerError, KeyError, TypeError, ValueError) as error:
                silent[name] = error

        with ThreadPoolExecutor(max(1, min(_THREADS, len(asked))), "own") as pool:
            list(pool.map(one, asked))
        return found, silent

    def _host_of(self, instance_id: str) -> str:
        """Return the host that a machine is on, "" for an id that is none of ours."""
        digest = _host_digest({"id": instance_id})
        if not digest:
            return ""
        name = next((each for each in self.settings.hosts if digest_of(each) == digest), "")
        if not name:
            raise ProvisionerError(f"{instance_id} is on a host that spotsupd.toml does not have any more: put it back")
        return name

    def _claim(self, request: LaunchRequest, host: OwnHost) -> dict[str, Any]:
        owner = request.owner
        return {
            "do": "claim",
            "id": machine_id(request.offer.region, owner, request.token),
            "cluster": owner.cluster,
            "key_mark": owner.key_mark,
            "token": request.token,
            "node": request.node,
            "host": request.offer.region,
            "zone": ZONE,
            "host_key_public": request.host_key.public,
            "host_key_private": request.host_key.private_openssh,
            "authorized_keys": list(request.authorized_keys),
            "gpus": host.numbers,
            "ports": self.settings.port_range,
        }

    def _offer(self, name: str, facts: Facts, query: OfferQuery) -> Offer:
        price = self.settings.hosts[name].usd_per_hour
        return Offer(
            cloud=self.name,
            region=name,
            zone=ZONE,
            instance_type=name,
            market=query.market,
            usd_per_hour=price,
            gpu=facts.gpu,
            gpus=len(facts.gpus),
            price_source="spotsupd.toml",
            room=1,
        )

    def _instance(self, name: str, closed: Closed | None, made: Mapping[str, Any]) -> Instance:
        """Return a claim on a host as a machine. Raises KeyError, TypeError, ValueError."""
        host, state, owner = self.settings.hosts[name], InstanceState(made["state"]), owner_of(made)
        # What it would say of another host's machines would be believed.
        if (made["id"], made["host"]) != (machine_id(name, owner, str(made["token"])), name):
            raise ValueError(f"{name} describes a machine {made['id']} of {made['host']}, which cannot be its own")
        lives = state is not InstanceState.TERMINATED
        return Instance(
            id=made["id"],
            owner=owner,
            node=str(made["node"]),
            token=str(made["token"]),
            region=name,
            zone=ZONE,
            instance_type=name,
            state=state,
            launched_at=float(made["launched_at"]),
            ssh_host=host.address if made["ssh_port"] else "",
            ssh_port=int(made["ssh_port"]) or 22,
            private_address=host.private_address or host.address,
            end_cause=None if lives else EndCause.USER if made["why"] == "given back" else EndCause.FAILED,
            end_message="" if lives else str(made["why"]),
            preempt_at=self._leaves_at(host, closed) if lives else None,
        )

    def _leaves_at(self, host: OwnHost, closed: Closed | None) -> float | None:
        """Return when a machine on this host has to be gone, if that is to be announced now."""
        now = self.clock()
        until = host.until(now)
        ends = [now] if until is None else [until] if until - now <= NOTICE_S else []
        if closed is not None and closed.until > now:
            ends.append(closed.since + CLOSE_NOTICE_S)
        return min(ends, default=None)


def _host_digest(claim: Any) -> str:
    """Return which host's id a claim has; "" for none."""
    named = isinstance(claim, dict) and _ID.fullmatch(str(claim.get("id")))
    return named[1] if named else ""


def _is_named_in(name: str, query: OfferQuery) -> bool:
    return (not query.regions or name in query.regions) and (not query.instance_types or name in query.instance_types)


def _fits(facts: Facts, query: OfferQuery) -> bool:
    if facts.problems or len(facts.gpus) < query.gpus_per_node:
        return False
    return not query.gpu or (bool(facts.gpus) and is_named(*facts.gpus[0], query.gpu))
