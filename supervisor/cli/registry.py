"""Which content an image's tag stands for now: asked of its registry once per job, so that all nodes run the same.

The OCI's distribution specification, and the tokens that registries want as Docker's do.
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
    """The image by its digest; as it is where it has one. Raises UsageError with one sentence."""
    import httpx

    if image.digest:
        return image
    login = (user, password) if user else None
    try:
        with http or httpx.Client(timeout=TIMEOUT_S, follow_redirects=True) as client:
            answer = _ask(client, image, login)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise UsageError(
            f"{image.registry} does not say what {image} is ({error or type(error).__name__}): name the image by its "
            f"digest, docker://{image.registry}/{image.repository}@sha256:…"
        ) from error
    digest = answer.headers.get("docker-content-digest", "")
    if answer.status_code in (401, 403):
        raise UsageError(
            f"{image.registry} does not show {image} to {user or 'everybody'}: set {REGISTRY_USER} and "
            f"{REGISTRY_PASSWORD} in the job's env"
        )
    if answer.status_code == 404:
        raise UsageError(f"{image.registry} has no {image}; look at its name and tag")
    if not answer.is_success or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise UsageError(f"{image.registry} answers {answer.status_code} and no digest for {image}: name that instead")
    return Image(image.registry, image.repository, digest=digest)


def _ask(client: httpx.Client, image: Image, login: tuple[str, str] | None) -> httpx.Response:
    scheme = "http" if _ON_THIS_COMPUTER.fullmatch(image.registry) else "https"
    base = _HUB_API if image.registry == HUB else f"{scheme}://{image.registry}"
    url, headers = f"{base}/v2/{image.repository}/manifests/{image.tag}", {"accept": _ACCEPT}
    answer = client.head(url, headers=headers)
    wanted = answer.headers.get("www-authenticate", "")
    if answer.status_code != 401 or not wanted:
        return answer
    if wanted.lower().startswith("basic"):
        return client.head(url, headers=headers, auth=login) if login else answer
    asked = dict(_PARAMETER.findall(wanted))
    if not asked.get("realm", "").startswith(("https://", f"{scheme}://")):
        return answer  # a password is not sent in the open
    params = {key: asked[key] for key in ("service", "scope") if key in asked}
    told = client.get(asked["realm"], params=params, auth=login)
    if not told.is_success:
        return told
    answered = told.json()
    token = (answered.get("token") or answered.get("access_token")) if isinstance(answered, dict) else ""
    if not token:
        raise ValueError(f"{asked['realm']} answers without a token")
    return client.head(url, headers=headers | {"authorization": f"Bearer {token}"})
