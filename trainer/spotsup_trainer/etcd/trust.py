"""Another CA of etcd for a node whose programs run: the daemon names it in etcd, a launcher writes it to the
file with the node's access, and every program of the node reads that file again at its next connection."""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from spotsup_trainer.etcd import Etcd, Tls
from spotsup_trainer.etcd.access import EtcdAccess, read_access

_CALL_S = 5.0
_MAX_PAUSE_S = 60.0
_BEGIN = "-----BEGIN CERTIFICATE-----"

log = logging.getLogger(__name__)


class CaFollower:
    """Keeps the file with a node's access at the CA that the daemon names. Its caller never waits for it.

    A CA that does not verify etcd as it is now is not written, whoever named it: a node that trusted it alone would
    never reach etcd again. It is tried again, because an etcd that was restored may name an old one for a while.
    """

    def __init__(self, access: EtcdAccess, endpoints: Sequence[str]) -> None:
        self._path = access.path
        self._endpoints = tuple(endpoints)
        self._wanted = ""
        self._closed = threading.Event()
        # A thread whose CA is no longer named may still be verifying it: it must not write last.
        self._writing = threading.Lock()

    def follow(self, ca: str) -> None:
        """Trust these certificates from now on."""
        if self._path and ca != self._wanted:
            self._wanted = ca
            threading.Thread(target=self._run, args=(ca,), name="CA of etcd", daemon=True).start()

    def close(self) -> None:
        """Try no more."""
        self._closed.set()

    def _run(self, ca: str) -> None:
        pause_s, logged = 1.0, ""
        while ca == self._wanted and not self._closed.is_set():
            try:
                if adopt(self._path, ca, self._endpoints, self._writing, lambda: ca == self._wanted):
                    log.info("etcd's CA is replaced in %s", self._path)
            except (OSError, ValueError) as error:
                if str(error) != logged:
                    log.warning("the CA that the daemon names for etcd is not used yet: %s", error)
                logged = str(error)
            else:
                return
            self._closed.wait(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)


def adopt(
    path: str,
    ca: str,
    endpoints: Sequence[str],
    writing: contextlib.AbstractContextManager[object],
    is_wanted: Callable[[], bool] = lambda: True,
) -> bool:
    """Write certificates to a file with an access, if they verify every endpoint that answers, and one does. False if
    they are there already, or not wanted any more once they are verified. Raises OSError, ValueError."""
    if read_access(path).ca == ca:
        return False
    if _BEGIN not in ca:
        raise ValueError("it has no certificate")
    _verify(ca, endpoints)
    temporary = Path(f"{path}.{os.getpid()}")
    with writing:
        if not is_wanted():
            return False
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(replace(read_access(path), ca=ca).encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    return True


def _verify(ca: str, endpoints: Sequence[str]) -> None:
    problem: OSError | None = None
    answered = 0
    with contextlib.closing(Etcd(endpoints, tls=Tls(ca_text=ca), timeout_s=_CALL_S)) as etcd:
        for index in range(len(endpoints)):
            try:
                etcd.connect(index).close()
            except ssl.SSLCertVerificationError:
                raise
            except OSError as error:
                problem = error
            else:
                answered += 1
    if problem is not None and not answered:
        raise problem
