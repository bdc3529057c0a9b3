"""Watches the provider's metadata service for the preemption notice of this machine."""

from __future__ import annotations

import http.client
import importlib
import json
import logging
import threading
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

from spotsup_trainer.wire import Metadata

_WAIT_S = 20
_RETRY_S = (0.5, 1.0, 2.0, 5.0)

log = logging.getLogger(__name__)


class NoticeReader(Protocol):
    """One provider's format."""

    def read(self) -> float | None:
        """Return the notice's deadline (UNIX seconds), None while there is no notice. May wait for up to a minute, and
        must take at least a second to return None. Raises OSError, http.client.HTTPException or ValueError.
        """
        ...


class LocalReader:
    """spotsup-localcloud: a long poll that ends when there is a notice."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"the metadata service's address is {url!r}; it should look like http://127.0.0.2:8080")
        self._host, self._port = parts.hostname, parts.port or 80
        self._path = parts.path.rstrip("/")

    def read(self) -> float | None:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_WAIT_S + 10)
        try:
            connection.request("GET", f"{self._path}/v1/preemption?wait_s={_WAIT_S}&last=false")
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise ValueError(f"HTTP {response.status}: {body[:200]!r}")
        answer = json.loads(body)
        return float(answer["deadline"]) if answer["preempted"] else None


# Metadata kind -> module and class. A module is loaded by the agent of its own cloud alone.
READERS = {
    "local": ("spotsup_trainer.agent.notices", "LocalReader"),
    "aws": ("spotsup_trainer.agent.aws", "AwsReader"),
    "gcp": ("spotsup_trainer.agent.gcp", "GcpReader"),
    "azure": ("spotsup_trainer.agent.azure", "AzureReader"),
}


def reader_for(metadata: Metadata) -> NoticeReader | None:
    """Return the reader for a provider, None if there is nothing to watch. Raises ValueError for an unknown
    provider."""
    if metadata.kind == "none":
        return None
    if metadata.kind not in READERS:
        known = ", ".join((*READERS, "none"))
        raise ValueError(f"this agent cannot read the metadata service of {metadata.kind!r}; it knows: {known}")
    module, name = READERS[metadata.kind]
    reader: NoticeReader = getattr(importlib.import_module(module), name)(metadata.url)
    return reader


class NoticeWatcher:
    """Reads until there is a notice, then calls `on_notice` with its deadline, once, from its own thread."""

    def __init__(self, reader: NoticeReader, on_notice: Callable[[float], None]) -> None:
        self._reader = reader
        self._on_notice = on_notice
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Make no further calls. A pending read is not interrupted; its thread ends with the process."""
        self._stopping.set()

    def _run(self) -> None:
        failures, logged = 0, ""
        while not self._stopping.is_set():
            try:
                deadline = self._reader.read()
            except Exception as error:  # noqa: BLE001 - whatever it is: without this thread no notice is ever read
                if str(error) != logged:
                    logged = str(error)
                    log.warning("cannot read the metadata service: %s; retrying", error)
                self._stopping.wait(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
                failures += 1
                continue
            failures, logged = 0, ""
            if deadline is not None and not self._stopping.is_set():
                self._on_notice(deadline)
                return
