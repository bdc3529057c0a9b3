"""The bucket for checkpoints: made where there is none, used as it is where it is not ours, never emptied unasked.

Names are unique in all of Cloud Storage. Sources: its discovery document, v1 (Bucket: iamConfiguration, lifecycle,
labels); "Public access prevention"; "Object Lifecycle Management" (AbortIncompleteMultipartUpload).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from provisioners.account import EMPTY_S, Found, NotUsedError, NotYetError, Resource, Row, Seen
from provisioners.base import DeniedError, Owner, ProvisionerError, owner_of
from provisioners.gcp.account import wanted
from provisioners.gcp.account.calls import MAX_PAGES, Calls
from provisioners.gcp.rest import STORAGE
from provisioners.gcp.settings import GcpSettings

ABORT_DAYS = 7  # a save that has not ended within a week never will
CLOSED = {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "enforced"}
_PATH = "storage/v1/b"


class Buckets:
    """Those of one installation."""

    def __init__(self, calls: Calls, settings: GcpSettings, owner: Owner) -> None:
        self._calls = calls
        self._project = {"project": settings.project}
        self._labels = {**settings.tags, **owner.tags}
        self.row = Row(
            *(wanted.BUCKET, self._buckets, self._make, self._delete),
            change=calls.does(
                *(STORAGE, "PATCH", f"{_PATH}/{{name}}", "storage.buckets.update"),
                lambda _: {"iamConfiguration": CLOSED},
            ),
            settle=wanted.closed,
            data=True,
            shared=True,
            optional=True,
        )

    def _buckets(self, seen: Seen) -> Iterator[Found]:
        """Yield those that are wanted; or where all is to go, those with our labels, and those that had them before."""
        for each in seen.wants(wanted.BUCKET) or [each.what for each in seen.all(wanted.BUCKET)]:
            if (raw := self._named(each.name)) is not None:
                yield _found(raw)
        if not seen.wanted and not seen.all(wanted.BUCKET):
            yield from (found for found in self._listed() if found.owner == seen.owner)

    def _named(self, name: str) -> dict[str, Any] | None:
        try:
            return self._calls.get(STORAGE, "GET", f"{_PATH}/{name}", "storage.buckets.get", want="name")
        except NotUsedError:
            raise
        except DeniedError as error:
            raise DeniedError(
                f"{error}; or gs://{name} is someone else's: names are unique in all of Cloud Storage"
            ) from error

    def _listed(self) -> Iterator[Found]:
        """Yield all of the project's."""
        query = {**self._project, "maxResults": "1000"}
        for _ in range(MAX_PAGES):
            raw = self._calls.ask(STORAGE, "GET", _PATH, "storage.buckets.list", want="kind", query=query)
            yield from map(_found, raw.get("items", ()))
            if not (token := raw.get("nextPageToken")):
                return
            query = {**query, "pageToken": str(token)}
        raise ProvisionerError(f"there are more than {MAX_PAGES} pages of buckets")

    def _make(self, what: Resource, _seen: Seen) -> None:
        """Closed, and with its labels from the first moment."""
        rule = {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": ABORT_DAYS}}
        body = {
            "name": what.name,
            "location": what.given,
            "iamConfiguration": CLOSED,
            "labels": self._labels,
            "lifecycle": {"rule": [rule]},
        }
        self._calls.change(STORAGE, "POST", _PATH, "storage.buckets.create", query=self._project, body=body)

    def _delete(self, what: Resource, _seen: Seen) -> None:
        """Delete a bucket with all that is in it, of all generations. Raises NotYetError while something is left."""
        deadline, path = time.monotonic() + EMPTY_S, f"{_PATH}/{what.name}"
        while objects := self._objects(path):
            for each in objects:
                if time.monotonic() > deadline:
                    raise NotYetError("it holds more objects")
                at, query = quote(str(each["name"]), safe=""), {"generation": str(each["generation"])}
                self._calls.change(STORAGE, "DELETE", f"{path}/o/{at}", "storage.objects.delete", query=query)
        self._calls.change(STORAGE, "DELETE", path, "storage.buckets.delete")

    def _objects(self, path: str) -> list[Mapping[str, Any]]:
        query = {"versions": "true", "maxResults": "1000"}
        raw = self._calls.ask(STORAGE, "GET", f"{path}/o", "storage.objects.list", want="kind", query=query)
        return list(raw.get("items", ()))


def _found(raw: Mapping[str, Any]) -> Found:
    access = raw.get("iamConfiguration") or {}
    uniform = bool((access.get("uniformBucketLevelAccess") or {}).get("enabled"))
    closed = uniform and access.get("publicAccessPrevention") == CLOSED["publicAccessPrevention"]
    region = str(raw.get("location", "")).lower()
    what = wanted.bucket(str(raw["name"]), region, is_closed=closed)
    return Found(what, owner_of(raw.get("labels") or {}), region)
