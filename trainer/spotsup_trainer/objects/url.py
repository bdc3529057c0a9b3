"""Addresses of folders in object stores. Standard library only.

s3://BUCKET/PREFIX
gs://BUCKET/PREFIX
abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX
"""

from __future__ import annotations

import re

_BUCKETS = {
    # https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
    "s3": re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
    # https://cloud.google.com/storage/docs/buckets#naming
    "gs": re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"),
    # https://learn.microsoft.com/azure/storage/blobs/data-lake-storage-introduction-abfs-uri
    "abfs": re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]@[a-z0-9]{3,24}\.dfs\.core\.windows\.net"),
}
SCHEMES = tuple(_BUCKETS)
FORMS = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX"
# Keys may have 1024 bytes; what is below the prefix takes some 120 of them.
MAX_PREFIX_CHARACTERS = 512


def is_url(place: str) -> bool:
    """True if `place` is an address rather than a folder."""
    return "://" in place


def checked(url: str) -> str:
    """`url` without a slash at its end. Raises ValueError: the end of a sentence."""
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.rstrip("/").partition("/")
    if scheme not in _BUCKETS or not _BUCKETS[scheme].fullmatch(bucket):
        raise ValueError(f"{url!r} is no object store that is known here; write {FORMS}")
    # No other characters: they would have to be escaped, and each store has rules of its own.
    if not re.fullmatch(r"[A-Za-z0-9._/=-]*", prefix) or {"", ".", ".."} & set(prefix.split("/") if prefix else ()):
        raise ValueError(f"the prefix of {url!r} may have letters, digits and . _ - = between single slashes")
    if len(prefix) > MAX_PREFIX_CHARACTERS:
        raise ValueError(f"the prefix of {url!r} is longer than {MAX_PREFIX_CHARACTERS} characters")
    return f"{scheme}://{bucket}/{prefix}".rstrip("/")


def scheme_of(url: str) -> str:
    """`s3`, `gs` or `abfs`."""
    return url.partition("://")[0]
