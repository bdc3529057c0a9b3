"""Resolves an image's tag to its digest, once per job, so that all nodes run the same image.

Follows the OCI distribution specification and Docker's token authentication.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from bootstrap.container.image import HUB, REGISTRY_PASSWORD, REGISTRY_USER, Image
from supervisor.errors import UsageError

if TYPE_CHECKING:
    import httpx

TIMEOUT_S = 20.0

_KINDS = ("oci.image.index.v1", "oci.image.manifest.v1", "docker.distribution.manifest.list.v2")
_ACCEPT = ", ".join(f"application/vnd.{kind}+json" for kind in (*_KINDS, "docker.distribution.manifest.v2"))
_HUB_API = "https://registry-1.docker.io"
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')
_ON_THIS_COMPUTER = re.compile(r"(localhost|127\.[\d.]+)(:\d+)?")


def pinned(image: Image, user: str = "", password: str = "", http: httpx.Client | None = None) -> Image:
    """The image by its digest; unchanged if it has one. Raises UsageError with one sentence."""
    import httpx

    if image.digest:
        return image
    login = (user, password) if user else None
    try:
        with http or httpx.Client(timeout=TIMEOUT_S, follow_redirects=True) as client:
            reply = _request_manifest(client, image, login)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise UsageError(
            f"{image.registry} does not resolve {image} ({error or type(error).__name__}): name the image by its "
            f"digest, docker://{image.registry}/{image.repository}@sha256:…"
        ) from error
    digest = reply.headers.get("docker-content-digest", "")
    if reply.status_code in (401, 403):
        raise UsageError(
            f"{image.registry} refuses {image} to {f'user {user}' if user else 'anonymous users'}: set "
            f"{REGISTRY_USER} and {REGISTRY_PASSWORD} in the job's env"
        )
    if reply.status_code == 404:
        raise UsageError(f"{image.registry} has no {image}: check its name and tag")
    if not reply.is_success or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise UsageError(
            f"{image.registry} answered {reply.status_code} without a digest for {image}: name the digest instead"
        )
    return Image(image.registry, image.repository, digest=digest)


def _request_manifest(client: httpx.Client, image: Image, login: tuple[str, str] | None) -> httpx.Response:
    scheme = "http" if _ON_THIS_COMPUTER.fullmatch(image.registry) else "https"
    base = _HUB_API if image.registry == HUB else f"{scheme}://{image.registry}"
    url, headers = f"{base}/v2/{image.repository}/manifests/{image.tag}", {"accept": _ACCEPT}
    reply = client.head(url, headers=headers)
    challenge = reply.headers.get("www-authenticate", "")
    if reply.status_code != 401 or not challenge:
        return reply
    if challenge.lower().startswith("basic"):
        return client.head(url, headers=headers, auth=login) if login else reply
    fields = dict(_PARAMETER.findall(challenge))
    if not fields.get("realm", "").startswith(("https://", f"{scheme}://")):
        return reply  # a password is never sent in the clear
    params = {key: fields[key] for key in ("service", "scope") if key in fields}
    token_reply = client.get(fields["realm"], params=params, auth=login)
    if not token_reply.is_success:
        return token_reply
    raw = token_reply.json()
    token = (raw.get("token") or raw.get("access_token")) if isinstance(raw, dict) else ""
    if not token:
        raise ValueError(f"{fields['realm']} answered without a token")
    return client.head(url, headers=headers | {"authorization": f"Bearer {token}"})
