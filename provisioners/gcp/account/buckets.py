"""The bucket for checkpoints: made where there is none, left as it is where it is not ours, never emptied unasked.

Names are unique in all of Cloud Storage. Sources: its discovery document, v1 (Bucket: iamConfiguration, lifecycle,
labels); "Public access prevention"; "Object Lifecycle Management" (AbortIncompleteMultipartUpload).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from provisioners.account import NotYetError
from provisioners.base import DeniedError, Owner, ProvisionerError, owner_of
from provisioners.gcp.account.calls import MAX_PAGES, Calls, NotEnabledError
from provisioners.gcp.account.plan import CloseBucket, FoundBucket, MakeBucket
from provisioners.gcp.rest import STORAGE
from provisioners.gcp.settings import GcpSettings

ABORT_DAYS = 7  # a save that has not ended within a week never will
CLOSED = {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "enforced"}
# One step deletes for so long, and the next one goes on.
EMPTY_S = 60.0
_PATH = "storage/v1/b"


class Buckets:
    """Those of one installation."""

    def __init__(self, calls: Calls, settings: GcpSettings, owner: Owner) -> None:
        self._calls = calls
        self._settings = settings
        self._owner = owner

    def found(self, name: str) -> FoundBucket | None:
        """The bucket of a name; None where nobody has one. Raises ProvisionerError for one that we may not look at."""
        try:
            raw = self._calls.get(STORAGE, "GET", f"{_PATH}/{name}", "storage.buckets.get", want="name")
        except NotEnabledError:
            raise
        except DeniedError as error:
            raise DeniedError(
                f"{error}; or gs://{name} is someone else's: names are unique in all of Cloud Storage"
            ) from error
        return _found(raw) if raw is not None else None

    def ours(self) -> Iterator[FoundBucket]:
        """Those of the project that have our labels. Raises ProvisionerError."""
        query = {"project": self._settings.project, "maxResults": "1000"}
        for _ in range(MAX_PAGES):
            raw = self._calls.ask(STORAGE, "GET", _PATH, "storage.buckets.list", want="kind", query=query)
            for each in raw.get("items", ()):
                if (bucket := _found(each)).owner == self._owner:
                    yield bucket
            if not (token := raw.get("nextPageToken")):
                return
            query = {**query, "pageToken": str(token)}
        raise ProvisionerError(f"there are more than {MAX_PAGES} pages of buckets")

    def take(self, step: MakeBucket | CloseBucket) -> None:
        """As CloudAccount says."""
        match step:
            case MakeBucket(bucket):
                rule = {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": ABORT_DAYS}}
                body = {
                    "name": bucket.name,
                    "location": bucket.region,
                    "iamConfiguration": CLOSED,
                    "labels": {**self._settings.tags, **self._owner.tags},
                    "lifecycle": {"rule": [rule]},
                }
                query = {"project": self._settings.project}
                self._calls.change(STORAGE, "POST", _PATH, "storage.buckets.create", query=query, body=body)
            case CloseBucket(bucket):
                body = {"iamConfiguration": CLOSED}
                path = f"{_PATH}/{bucket.name}"
                self._calls.change(STORAGE, "PATCH", path, "storage.buckets.update", body=body)

    def delete(self, name: str) -> None:
        """With all that is in it, of all generations. Raises NotYetError while something is left."""
        found = self.found(name)
        if found is None:
            return
        if found.owner != self._owner:
            raise ProvisionerError(f"{found} has this installation's labels no more: nothing in it was deleted")
        deadline = time.monotonic() + EMPTY_S
        while objects := self._objects(name):
            for each in objects:
                if time.monotonic() > deadline:
                    raise NotYetError("it holds more objects")
                path = f"{_PATH}/{name}/o/{quote(str(each['name']), safe='')}"
                query = {"generation": str(each["generation"])}
                self._calls.change(STORAGE, "DELETE", path, "storage.objects.delete", query=query)
        self._calls.change(STORAGE, "DELETE", f"{_PATH}/{name}", "storage.buckets.delete")

    def _objects(self, name: str) -> list[Mapping[str, Any]]:
        query = {"versions": "true", "maxResults": "1000"}
        raw = self._calls.ask(STORAGE, "GET", f"{_PATH}/{name}/o", "storage.objects.list", want="kind", query=query)
        return list(raw.get("items", ()))


def _found(raw: Mapping[str, Any]) -> FoundBucket:
    access = raw.get("iamConfiguration") or {}
    uniform = bool((access.get("uniformBucketLevelAccess") or {}).get("enabled"))
    closed = uniform and access.get("publicAccessPrevention") == CLOSED["publicAccessPrevention"]
    region = str(raw.get("location", "")).lower()
    return FoundBucket(region, str(raw["name"]), owner_of(raw.get("labels") or {}), closed)
