"""Another CA for etcd, without stopping a job: first all trust both, then the new one signs, then the old one leaves.

Where a rotation stands follows from the files alone, so each step may be repeated, also after a crash in its middle:
`next-ca.key` exists until the new CA signs, and `ca.crt` holds two certificates until the old one has left.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from spotsup_trainer.etcd.access import fingerprints

from supervisor.errors import CommandRefusedError, StartError
from supervisor.files import replace_file
from supervisor.journal.certificates import (
    TlsFiles,
    certificates_in,
    ensure_certificates,
    key_in,
    names_in,
    new_ca,
)
from supervisor.journal.journal import USES_ETCD
from supervisor.journal.reading import Reading

MAX_NAMED = 5


class Phase(StrEnum):
    """Where a rotation stands."""

    SETTLED = "settled"  # one CA
    BEGUN = "begun"  # the new one is to be trusted by all
    SIGNED = "signed"  # etcd's certificate is of the new one, and the old one is still trusted


@dataclass(frozen=True, slots=True)
class Rotation:
    """`signing`: the CA that signs. `other`: the one that will, or did; None if there is none."""

    phase: Phase
    signing: x509.Certificate
    other: x509.Certificate | None = None

    @property
    def new(self) -> x509.Certificate:
        """The CA that stays."""
        return self.other if self.phase is Phase.BEGUN and self.other else self.signing


@dataclass(frozen=True, slots=True)
class CaState:
    """A CA on one of several hosts. `age`: a later state of a rotation is greater."""

    cas: frozenset[bytes]
    age: tuple[dt.datetime, int]

    @staticmethod
    def of(ca: bytes, key: bytes | None) -> CaState:
        """From `ca.crt` and `ca.key`, which a host that signs nothing has not. Raises ValueError."""
        found = x509.load_pem_x509_certificates(ca)
        newest = max(found, key=lambda each: each.not_valid_before_utc)
        signs = key is not None and load_pem_private_key(key, None).public_key() == newest.public_key()
        phase = 2 if len(found) == 1 else int(signs)
        return CaState(frozenset(map(_pem, found)), (newest.not_valid_before_utc, phase))


def rotation_of(files: TlsFiles) -> Rotation:
    """Where the rotation in a folder stands. Raises CommandRefusedError if no CA of ours is there, StartError."""
    if not files.ca.exists() or not files.ca_key.exists():
        raise CommandRefusedError(
            f"{files.folder} has no ca.crt and ca.key: name the folder that `spotsupd etcd-certificates` made, on the "
            "host that has ca.key"
        )
    try:
        trusted, public = certificates_in(files.ca), key_in(files.ca_key).public_key()
        signing = next((each for each in trusted if each.public_key() == public), None)
        others = [each for each in trusted if each.public_key() != public]
        if signing is None or len(others) > 1:
            raise ValueError("ca.crt does not hold the CA of ca.key, and at most one more")
        if not files.next_ca_key.exists():
            if others and others[0].not_valid_before_utc > signing.not_valid_before_utc:
                raise ValueError("ca.crt holds a newer CA than that of ca.key: copy next-ca.key and next-ca.crt, too")
            return Rotation(Phase.SIGNED if others else Phase.SETTLED, signing, others[0] if others else None)
        if others and key_in(files.next_ca_key).public_key() != others[0].public_key():
            raise ValueError("next-ca.key is not the key of the second CA in ca.crt")
        return Rotation(Phase.BEGUN if others else Phase.SETTLED, signing, others[0] if others else None)
    except (OSError, ValueError) as error:
        raise StartError(f"the CA in {files.folder} cannot be used ({error}): restore the folder") from error


def begin(files: TlsFiles, now: dt.datetime) -> str:
    """Make the new CA, and have it trusted beside the old one. Returns what was done, or "". Raises SpotsupError."""
    found = rotation_of(files)
    if found.phase is Phase.SIGNED:
        raise CommandRefusedError("the last rotation is not over, the CA before is still trusted: `finish` it first")
    if found.phase is Phase.BEGUN:
        return ""
    key = key_in(files.next_ca_key)
    made = next((each for each in certificates_in(files.next_ca) if each.public_key() == key.public_key()), None)
    if made is None:
        made = new_ca(key, now)
        replace_file(files.next_ca, _pem(made))
    replace_file(files.ca, _pem(found.signing) + _pem(made))
    return f"made a CA that is valid until {made.not_valid_after_utc:%Y-%m-%d}; {files.ca} holds it beside the old one"


def sign(files: TlsFiles, now: dt.datetime) -> str:
    """Sign etcd's certificate by the new CA. All have to trust it: `lacking`. Returns what was done, or ""."""
    found = rotation_of(files)
    if found.phase is Phase.SETTLED:
        raise CommandRefusedError("there is no new CA: `begin` first")
    (known,) = certificates_in(files.cert)
    if found.phase is Phase.BEGUN:
        files.next_ca_key.replace(files.ca_key)  # from here on it signs, whoever renews the certificate
    files.next_ca.unlink(missing_ok=True)
    return ensure_certificates(files, names_in(known), now)


def finish(files: TlsFiles) -> str:
    """Trust the old CA no more. Returns what was done, or ""."""
    found = rotation_of(files)
    if found.phase is Phase.BEGUN:
        raise CommandRefusedError("etcd's certificate is still of the old CA: `sign` first")
    if found.phase is Phase.SETTLED:
        return ""
    replace_file(files.ca, _pem(found.signing))
    return f"{files.ca} holds the new CA only"


def lacking(reading: Reading, daemons: Mapping[str, Sequence[str]], ca: str) -> list[str]:
    """Who does not trust a CA yet, each with its reason. `ca`: its fingerprint. `daemons`: what each of them trusts."""
    found = [
        f"daemon {name}: copy ca.crt to where its etcd.ca is" for name, cas in sorted(daemons.items()) if ca not in cas
    ]
    found += [f"job {job}: {why}" for job, why in reading.refused.items()]
    for view in reading.jobs.values():
        for node in view.nodes.values():
            if node.state not in USES_ETCD:
                continue
            agent = view.agents.get(node.id)
            if agent is None:
                found.append(f"node {node.id}: its agent is silent, or does not run yet")
            elif ca not in agent.cas:
                found.append(f"node {node.id}: it has not taken over the new CA yet")
    return found


def summary(who: Sequence[str]) -> str:
    """The first of a list, and how many more there are."""
    more = f" and {len(who) - MAX_NAMED} more" if len(who) > MAX_NAMED else ""
    return "; ".join(who[:MAX_NAMED]) + more


def fingerprint(certificate: x509.Certificate) -> str:
    """As nodes and daemons name it."""
    return fingerprints(_pem(certificate).decode())[0]


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)
