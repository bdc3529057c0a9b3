"""What a daemon does for the trust in etcd: nodes learn of another CA, and people of certificates that end soon."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from cryptography import x509
from spotsup_trainer.etcd import Compare, Etcd

from supervisor.errors import StartError
from supervisor.events import EventKind
from supervisor.journal.connection import EtcdLogin
from supervisor.journal.journal import Journal
from supervisor.model import Event
from supervisor.planner.actions import Commit

if TYPE_CHECKING:
    import ssl

# A certificate ends soon when so much of its life is left: of a CA of ours a year, of etcd's certificate five weeks, of
# one for 90 days nine days. By then it should have been renewed long ago.
SOON = 0.1
_HOW = "docs/operations.md#another-ca-for-etcd says how"


@dataclass(frozen=True, slots=True)
class Ending:
    """A certificate that ends soon. `subject`: without spaces."""

    subject: str
    at: dt.datetime
    sentence: str


@dataclass(frozen=True, slots=True)
class EtcdTrust:
    """Housekeeping of the leader. `guard`: as Leadership has it. `alerts`: whether people are sent any."""

    login: EtcdLogin
    journal: Journal
    now: Callable[[], float]
    guard: Callable[[], Sequence[Compare]]
    alerts: bool

    def publish(self) -> str:
        """Name the CAs to all nodes. Returns what was done, or ""."""
        if not self.login.ca:
            return ""
        jobs = self.journal.publish_ca(self.login.ca_text(), self.guard())
        return f"named the CA of etcd to the nodes of {', '.join(jobs)}" if jobs else ""

    def warn(self) -> str:
        """Alert people of what ends soon, once a week. Returns what it found, or ""."""
        at = self.now()
        found = ending(self.login, dt.datetime.fromtimestamp(at, dt.UTC))
        if not found:
            return ""
        known = {event.id for event in self.journal.events("")}
        events = [event for each in found if (event := _event(each, at)).id not in known]
        if events:
            self.journal.commit(
                Commit(job="", guards={}, events=events, alerts=events if self.alerts else []), self.guard()
            )
        return "; ".join(each.sentence for each in found)


def ending(login: EtcdLogin, now: dt.datetime) -> list[Ending]:
    """Return what ends soon, or has ended, of etcd's certificates and of the CAs. Endpoints that do not answer are left
    out.

    Raises StartError.
    """
    found = ca_ending(Path(login.ca), now) if login.ca else []
    with contextlib.closing(login.connect()) as etcd:
        for index, endpoint in enumerate(etcd.endpoints):
            if endpoint.startswith("https:"):
                with contextlib.suppress(OSError):
                    found += _shown_ending(etcd, index, now)
    return found


def ca_ending(file: Path, now: dt.datetime) -> list[Ending]:
    """Return the CA in a file, if it ends soon; the last of several. Raises StartError."""
    try:
        last = max(x509.load_pem_x509_certificates(file.read_bytes()), key=lambda each: each.not_valid_after_utc)
    except (OSError, ValueError) as error:
        raise StartError(f"{file} cannot be read as certificates ({error}): restore it") from error
    if not _is_soon(last, now):
        return []
    text = f"the CA of etcd in {file} ends on {last.not_valid_after_utc:%Y-%m-%d}"
    return [Ending("ca", last.not_valid_after_utc, f"{text}: replace it while jobs run, {_HOW}")]


def _shown_ending(etcd: Etcd, index: int, now: dt.datetime) -> list[Ending]:
    """Return the certificate that an endpoint shows, if it ends soon. Raises OSError."""
    with contextlib.closing(etcd.connect(index)) as connection:
        encrypted = cast("ssl.SSLSocket", connection.sock)
        shown = x509.load_der_x509_certificate(encrypted.getpeercert(binary_form=True) or b"")
    if not _is_soon(shown, now):
        return []
    endpoint, until = etcd.endpoints[index], shown.not_valid_after_utc
    text = (
        f"the certificate of etcd at {endpoint} ends on {until:%Y-%m-%d}: renew it; one that `spotsupd init` made the "
        "daemon beside it renews, so its log says why not (`journalctl -u spotsupd`)"
    )
    return [Ending(endpoint.rpartition("/")[2], until, text)]


def _is_soon(certificate: x509.Certificate, now: dt.datetime) -> bool:
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return certificate.not_valid_after_utc - now < SOON * life


def _event(found: Ending, now: float) -> Event:
    year, week, _ = dt.datetime.fromtimestamp(now, dt.UTC).isocalendar()
    kind = EventKind.CERTIFICATE_ENDS
    return Event(f"{kind}-{found.subject}-{found.at:%Y%m%d}-{year}w{week:02}", now, "", kind, found.sentence)
