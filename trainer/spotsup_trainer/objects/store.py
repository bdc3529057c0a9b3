"""A folder of an object store: the few calls that checkpoints need, with time limits and errors that say what to do.

`obstore` makes the calls: one package without dependencies for S3, Google Cloud Storage and Azure, which has neither
grpc nor protobuf, and pins no SDK of the user's (docs/decisions/0022). It takes credentials from the
machine's role, or from the variables that each cloud's own tools read. No credentials are in a job file.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, Protocol

from spotsup_trainer.objects import url as urls

CONNECT_TIMEOUT_S = 10
# One part of a checkpoint must arrive in this time: 140 kB/s.
REQUEST_TIMEOUT_S = 120
MAX_RETRIES = 8
# No further try is made after this time. obstore's documentation: below 5 minutes, for a try keeps its signature.
RETRY_FOR_S = 120
MAX_BACKOFF_S = 10
# Parts of a file that one rank reads or writes at a time: as much memory as twice these parts.
TRANSFERS = 4
_S3_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_ENDPOINTS = (*_S3_ENDPOINTS, "GOOGLE_BASE_URL", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")


class StoreError(OSError):
    """A request failed for good, after retries. The message says what to do, where that is known."""


class MissingError(StoreError):
    """There is no such object."""


class ChangedError(StoreError):
    """A conditional write was refused: another process has written this object since it was read."""


@dataclass(frozen=True)
class Object:
    """`name` is relative to the store's folder. The `etag` changes with each write."""

    name: str
    size: int
    etag: str


class Store(Protocol):
    """A folder of an object store. Names are relative to it. All methods raise StoreError."""

    @property
    def url(self) -> str:
        """Return its address."""
        ...

    def put(self, name: str, data: Any) -> None:
        """Write an object whole; `data` is a buffer."""
        ...

    def swap(self, name: str, data: bytes, etag: str) -> None:
        """Write an object if it is still the one with this `etag`, or, with "", if there is none.

        Raises ChangedError. That may also be this very call's own write, whose answer was lost: read it then.
        """
        ...

    def get(self, name: str) -> tuple[bytes, str] | None:
        """Return an object and its etag for `swap`, None if there is none."""
        ...

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """Return a part of an object. Raises MissingError."""
        ...

    def listed(self, below: str = "") -> list[Object]:
        """Return all objects below a folder, in the order of their names."""
        ...

    def folders(self) -> list[str]:
        """Return the folders right below."""
        ...

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; those that are not there do not matter."""
        ...


@lru_cache(maxsize=8)
def open_store(url: str) -> ObstoreStore:
    """Return the store at `url`, which was `checked`. Connects to nothing. Raises StoreError if obstore is not
    installed."""
    return ObstoreStore(url, os.environ)


class ObstoreStore:
    """As `Store` says. Safe to use from several threads."""

    def __init__(
        self, url: str, environ: Mapping[str, str], retries: int = MAX_RETRIES, retry_for_s: float = RETRY_FOR_S
    ) -> None:
        try:
            import obstore
            from obstore.exceptions import BaseError
            from obstore.store import from_url
        except ImportError as error:
            raise StoreError(
                f"{url} needs the package obstore in the environment that trains, and it cannot be imported ({error}): "
                "add obstore to the job's requirements, its image, or its `setup` (pip install obstore)"
            ) from None
        self.url = url
        self._calls: Any = obstore
        self._errors = (BaseError, OSError, ValueError)
        options: dict[str, Any] = {}
        if region := region_needed(url, environ):
            options["region"] = region
        self._store: Any = from_url(
            url,
            **options,
            client_options=client_options(environ),
            retry_config={
                "max_retries": retries,
                "retry_timeout": timedelta(seconds=retry_for_s),
                "backoff": {"max_backoff": timedelta(seconds=MAX_BACKOFF_S)},
            },
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process opens it with its own credentials."""
        return open_store, (self.url,)

    def put(self, name: str, data: Any) -> None:
        """As `Store` says."""
        with self._asking("write", name):
            # In one request: an upload in several is invisible until it is completed, costs money meanwhile, and is
            # left over where its process is killed.
            self._calls.put(self._store, name, data, use_multipart=False)

    def swap(self, name: str, data: bytes, etag: str) -> None:
        """As `Store` says."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._asking("write", name):
            try:
                self._calls.put(self._store, name, data, mode=json.loads(etag) if etag else "create")
            except (AlreadyExistsError, PreconditionError):
                raise ChangedError(f"{self.url}/{name} was changed by another process") from None

    def get(self, name: str) -> tuple[bytes, str] | None:
        """As `Store` says."""
        with self._asking("read", name):
            try:
                found = self._calls.get(self._store, name)
            except FileNotFoundError as error:
                if _code_in(str(error)) in _NO_BUCKET:
                    raise
                return None
            # S3 and Azure compare the etag, Google Cloud Storage the generation.
            tag = {key: found.meta[key] for key in ("e_tag", "version") if found.meta[key] is not None}
            return bytes(found.bytes()), json.dumps(tag)

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """As `Store` says."""
        with self._asking("read", name):
            return bytes(self._calls.get_range(self._store, name, start=start, length=length))

    def listed(self, below: str = "") -> list[Object]:
        """As `Store` says."""
        with self._asking("list", below):
            pages = self._calls.list(self._store, prefix=f"{below}/" if below else None)
            found = [Object(each["path"], each["size"], str(each["e_tag"])) for page in pages for each in page]
        return sorted(found, key=lambda each: each.name)

    def folders(self) -> list[str]:
        """As `Store` says."""
        with self._asking("list", ""):
            found = self._calls.list_with_delimiter(self._store)["common_prefixes"]
        return sorted(each.rstrip("/").rpartition("/")[2] for each in found)

    def delete(self, names: Sequence[str]) -> None:
        """As `Store` says."""
        with self._asking("delete", names[0] if names else ""):
            if not names:
                return
            try:
                self._calls.delete(self._store, list(names))
            except FileNotFoundError:
                # S3 does not mind. With the other two the client begins no further deletions once one was not there.
                for name in names if len(names) > 1 else ():
                    with contextlib.suppress(FileNotFoundError):
                        self._calls.delete(self._store, [name])

    @contextmanager
    def _asking(self, verb: str, name: str) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except self._errors as error:
            raise self._failure(verb, name, error) from None

    def _failure(self, verb: str, name: str, error: Exception) -> StoreError:
        kind = MissingError if isinstance(error, FileNotFoundError) else StoreError
        return kind(f"cannot {verb} {self.url}/{name}: {sentence_of(str(error))}".replace("/: ", ": "))


def client_options(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return how requests are made. Plain HTTP only to an endpoint that a person has named: a private store, or a
    test's."""
    named = (environ.get(name, "") for name in _ENDPOINTS)
    return {
        "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
        "timeout": timedelta(seconds=REQUEST_TIMEOUT_S),
        "allow_http": any(endpoint.startswith("http://") for endpoint in named),
    }


def region_needed(url: str, environ: Mapping[str, str]) -> str:
    """Return the region of an S3 bucket, which each request is signed for; "" where it is given, or cannot be learned.

    S3 says it to everybody, also in refusals (HeadBucket: "x-amz-bucket-region"); the machine's own region may be
    another one.
    """
    given = any(environ.get(name) for name in ("AWS_REGION", "AWS_DEFAULT_REGION", *_S3_ENDPOINTS))
    if given or urls.scheme_of(url) != "s3":
        return ""
    return region_by(f"https://s3.amazonaws.com/{url.removeprefix('s3://').partition('/')[0]}", CONNECT_TIMEOUT_S)


def region_by(address: str, timeout_s: float) -> str:
    """Return what the answer to a HEAD request names as region, "" without one."""
    request = urllib.request.Request(address, method="HEAD")  # noqa: S310  # an address of ours
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310  # as above
            return str(answer.headers.get("x-amz-bucket-region") or "")
    except urllib.error.HTTPError as error:
        return str(error.headers.get("x-amz-bucket-region") or "")
    except (OSError, http.client.HTTPException):
        return ""


_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound"})
_SLOW_DOWN = "the store asks for fewer requests, and did so until the time was up"
_EXPIRED = "the credentials have expired: use the machine's role, which renews them, or replace those in `env`"
_REMEDIES = {
    "NoSuchBucket": "there is no such bucket: make it, or correct `checkpoints`",
    "ContainerNotFound": "there is no such container: make it, or correct `checkpoints`",
    "InvalidAccessKeyId": "the access key is unknown: use the machine's role, or correct the keys in `env`",
    "SignatureDoesNotMatch": "the secret key is wrong: use the machine's role, or correct the keys in `env`",
    "RequestTimeTooSkewed": "set the machine's clock: it differs from the store's by more than 15 minutes",
    "NotImplemented": "this store has no conditional writes (If-Match), without which two processes could mix up "
    "checkpoints: use another",
    "SlowDown": _SLOW_DOWN,
    "ServerBusy": _SLOW_DOWN,
    "ExpiredToken": _EXPIRED,
    "InvalidAuthenticationInfo": _EXPIRED,
}
# Only who has no other credentials asks the machine's metadata service for some.
_METADATA_SERVICES = ("169.254.169.254", "/latest/api/token", "metadata.google.internal", "missing_credentials")
_WRONG_REGION = "the bucket is in another region: set AWS_REGION to it in the job's `env`"
# What refuses may be the key that a bucket is encrypted with. In lower case, as found in: buildkite/docs#2344 (S3,
# which may also say no more than "Access Denied": boto3#2952), S3's API reference (Error responses), "Use
# customer-managed encryption keys" (Cloud Storage), "Blob Storage error codes".
_KEY_REFUSALS = (
    (
        "perform: kms:",
        (
            "the key that encrypts the bucket refuses: let the machine's role use it, by the role's policy and the "
            "key's (kms:GenerateDataKey, kms:Decrypt)"
        ),
    ),
    ("<code>kms.", "the key that encrypts the bucket cannot be used: enable it, or give the bucket another one"),
    (
        "cloud kms key",
        (
            "the key that encrypts the bucket refuses: give Cloud Storage's service agent of its project "
            "roles/cloudkms.cryptoKeyEncrypterDecrypter on it"
        ),
    ),
    ("<code>keyvault", "the key that encrypts the storage account cannot be used: look at it in its key vault"),
)
_DENIED = "access is denied: give the machine's role what docs/permissions/*-checkpoints-* lists"
NO_CREDENTIALS = (
    "there are no credentials: give the machine a role that may use the bucket (`instance_profile`, "
    "`service_account`, `identity` in spotsupd.toml)"
)


def _code_in(text: str) -> str:
    found = re.search(r"<Code>([\w.]+)</Code>", text) or re.search(r'"code":\s*"(\w+)"', text)
    return found[1] if found else ""


def sentence_of(text: str) -> str:
    """Return what a failed request says, as one short sentence, with the remedy where it is known. obstore's own text
    has the whole answer, and several lines."""
    code = _code_in(text)
    # The last form is that of one object among several to delete.
    forms = (r"status code: (\d{3})", r"\b([345]\d\d) [A-Z]", r"\(code: (\d{3})\)")
    status = next((found[1] for found in (re.search(form, text) for form in forms) if found), "")
    answer = " ".join(filter(None, (status, code)))
    if code in _REMEDIES:
        return f"{_REMEDIES[code]} ({answer})"
    lowered = text.lower()
    for part, remedy in _KEY_REFUSALS:
        if part in lowered:
            return f"{remedy} ({answer})"
    if any(part in lowered for part in _METADATA_SERVICES):
        return f"{NO_CREDENTIALS} ({_first_words(text)})"
    # obstore follows no redirect without an address, as S3's to another region is, and says so in these words.
    if "incorrectly configured region" in lowered:
        return _WRONG_REGION
    if status == "301" or code in {"PermanentRedirect", "AuthorizationHeaderMalformed"}:
        return f"{_WRONG_REGION} ({answer})"
    if status in {"401", "403"}:
        return f"{_DENIED} ({answer})"
    if answer:
        return f"the store answered {answer}"
    return _first_words(text)


def _first_words(text: str) -> str:
    """Return the innermost reason of an error without an answer: the end of obstore's first line."""
    first = text.strip().splitlines()[0] if text.strip() else "no reason given"
    return first if len(first) <= 300 else f"…{first[-300:]}"
