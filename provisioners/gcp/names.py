"""Names and labels: what Compute Engine allows, and what they show of a deleted instance. Pure.

An instance's name is made from its token: a second insertion of the name is refused, so a token has one instance. Of a
deleted instance only operations remain, and they have only its name. So it includes owner and node too: the owner as a
digest, the node as it is where it fits.
"""

from __future__ import annotations

import base64
import hashlib
import re
import uuid
from collections.abc import Mapping

from provisioners.base import LaunchRequest, Owner, ProvisionerError

_PREFIX = "spotsup"
_TOKEN_CHARACTERS = 16  # 80 bits
_OWNER_CHARACTERS = 8  # of Owner.digest
_MAX_NAME = 63
_MAX_LABELS = 64
_NAME = re.compile(rf"{_PREFIX}-([a-z2-7]{{{_TOKEN_CHARACTERS}}})-([a-z2-7]{{{_OWNER_CHARACTERS}}})(?:-(.+))?")
_MAX_NODE = _MAX_NAME - len(_PREFIX) - _TOKEN_CHARACTERS - _OWNER_CHARACTERS - 3
_FITS_NAME = re.compile(rf"[a-z0-9]([a-z0-9-]{{0,{_MAX_NODE - 2}}}[a-z0-9])?")
# "Requirements for labels", Compute Engine. Letters of other scripts are allowed, too, and not needed.
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_DIGEST_VALUE = re.compile(r"sha256-[0-9a-f]{48}")
_REQUESTS = uuid.UUID("6f0c6f4e-3c53-5d2b-9a53-0d6b1d1f6a0b")


def instance_name(request: LaunchRequest) -> str:
    """Return the instance's name: the same for the same request, different for another token or owner."""
    name = f"{_PREFIX}-{_digest(request.token)}-{request.owner.digest}"
    return f"{name}-{request.node}" if _FITS_NAME.fullmatch(request.node) else name


def node_in(name: str) -> str:
    """Return the node in a name, "" where there is none."""
    match = _NAME.fullmatch(name)
    return (match[3] or "") if match else ""


def pattern_of_token(owner: Owner, token: str) -> str:
    """Return an RE2 expression for the URLs of all instances that an owner's token ever had."""
    return f".*/instances/{_PREFIX}-{_digest(token)}-{owner.digest}(-.*)?"


def pattern_of_owner(owner: Owner | None) -> str:
    """Return an RE2 expression for the URLs of all instances of an owner; None: of every one."""
    digest = owner.digest if owner else f"[a-z2-7]{{{_OWNER_CHARACTERS}}}"
    return f".*/instances/{_PREFIX}-[a-z2-7]{{{_TOKEN_CHARACTERS}}}-{digest}(-.*)?"


def labelled(tags: Mapping[str, str]) -> str:
    """Return the filter of a listing that only resources with these tags as labels pass."""
    return " AND ".join(f'(labels.{key} = "{label_value(value)}")' for key, value in tags.items())


def request_id(request: LaunchRequest, failures: int) -> str:
    """Return the idempotency id of a launch after `failures` failed ones. The same id returns the same operation."""
    return str(uuid.uuid5(_REQUESTS, f"{request.owner.digest}\n{request.token}\n{failures}"))


def labels(request: LaunchRequest, tags: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of new resources. Raises ProvisionerError for a tag that is not a valid label."""
    found = {**tags, **request.tags}
    for key, value in found.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise ProvisionerError(
                f"the tag {key} = {value!r} is not a label: Compute Engine allows lower case letters, digits, _ and -, "
                "at most 63 of them, and a key begins with a letter; change it in gcp.tags"
            )
    found |= {key: label_value(value) for key, value in request.own_tags.items()}
    if len(found) > _MAX_LABELS:
        raise ProvisionerError(f"{len(found)} labels are more than Compute Engine allows ({_MAX_LABELS}): see gcp.tags")
    return found


def label_value(text: str) -> str:
    """Return a unique label for a text: the text itself where it fits, else a digest."""
    if _LABEL_VALUE.fullmatch(text) and not _DIGEST_VALUE.fullmatch(text):
        return text
    return f"sha256-{hashlib.sha256(text.encode()).hexdigest()[:48]}"


def plain_value(label: str) -> str:
    """Return the text of a label, "" where it is a digest."""
    return "" if _DIGEST_VALUE.fullmatch(label) else label


def id_of(zone: str, name: str) -> str:
    """Our id: a name is unique within its zone."""
    return f"{zone}:{name}"


def split_id(instance_id: str) -> tuple[str, str]:
    """(zone, name); the zone is "" where the id names none."""
    zone, _, name = instance_id.rpartition(":")
    return zone, name


def region_of(zone: str) -> str:
    """us-central1-a is in us-central1."""
    return zone.rpartition("-")[0]


def last_of(url: str) -> str:
    """Return the last part of a resource's URL."""
    return url.rpartition("/")[2]


def _digest(token: str) -> str:
    return base64.b32encode(hashlib.sha256(token.encode()).digest()).decode().lower()[:_TOKEN_CHARACTERS]
