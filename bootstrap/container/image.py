"""Names of container images, by the rules of Docker and the OCI distribution specification. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

SCHEME = "docker://"
HUB = "docker.io"
REGISTRY_USER = "SPOTSUP_REGISTRY_USER"
REGISTRY_PASSWORD = "SPOTSUP_REGISTRY_PASSWORD"  # noqa: S105 - a variable's name

_HOST = re.compile(r"localhost|[A-Za-z0-9.-]+:\d{1,5}|[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+(:\d{1,5})?")
_PART = r"[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*"
_NAME = re.compile(rf"{_PART}(/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Image:
    """An image of a registry, by its tag or, once that is resolved, by its `digest` ("sha256:…")."""

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        """Return the name as Docker and Apptainer accept it. Never with both tag and digest: Apptainer refuses that."""
        return f"{self.registry}/{self.repository}{f'@{self.digest}' if self.digest else f':{self.tag}'}"

    @property
    def name(self) -> str:
        """Return the name of its file: from the digest, so the same for all registries."""
        return self.digest.removeprefix("sha256:")[:32]


def image_of(environment: str) -> Image | None:
    """Return the image that `environment:` names, None where it names none. Raises ValueError."""
    if not environment.startswith(SCHEME):
        return None
    text = environment.removeprefix(SCHEME)
    rest, _, digest = text.partition("@")
    first, slash, path = rest.partition("/")
    host, path = (first, path) if slash and _HOST.fullmatch(first) else (HUB, rest)
    path, _, tag = path.partition(":")
    if (
        not _NAME.fullmatch(path)
        or (tag and not _TAG.fullmatch(tag))
        or ("@" in text and not _DIGEST.fullmatch(digest))
    ):
        raise ValueError(
            f"{environment!r} names no container image; write docker://nvcr.io/nvidia/pytorch:25.01-py3, for instance, "
            "or a digest, docker://registry/image@sha256:…"
        )
    # Docker's own rule for its hub: docker.io/library/python is what it calls python.
    path = f"library/{path}" if host == HUB and "/" not in path else path
    return Image(host, path, "" if digest else tag or "latest", digest)
