"""Resolves an image's tag to its digest, once per job, so that all nodes run the same image.

Follows the OCI distribution specification and Docker's token authentication.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import urlencode, urlsplit

from bootstrap.container.image import HUB, REGISTRY_PASSWORD, REGISTRY_USER, Image
from supervisor.errors import UsageError

TIMEOUT_S = 20.0
MAX_ANSWER_BYTES = 1_000_000

_KINDS = ("oci.image.index.v1", "oci.image.manifest.v1", "docker.distribution.manifest.list.v2")
_ACCEPT = ", ".join(f"application/vnd.{kind}+json" for kind in (*_KINDS, "docker.distribution.manifest.v2"))
_HUB_API = "https://registry-1.docker.io"
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')
_ON_THIS_COMPUTER = re.compile(r"(localhost|127\.[\d.]+)(:\d+)?")


@dataclass(frozen=True, slots=True)
class Answer:
    """A registry's, or its token server's."""

    status: int
    # By names in small letters.
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def is_success(self) -> bool:
        """True if it is what was asked for."""
        return 200 <= self.status < 300


# A method, a URL and headers.
Ask: TypeAlias = Callable[[str, str, Mapping[str, str]], Answer]


class _Redirects(urllib.request.HTTPRedirectHandler):
    """What was asked stays the same, and a password is for the host alone that it was meant for."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """As urllib does."""
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None:
            made.method = req.get_method()
            if urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
                made.remove_header("Authorization")
        return made


def ask(method: str, url: str, headers: Mapping[str, str]) -> Answer:
    """Send a request, by the proxies of the environment. Raises OSError, HTTPException and ValueError."""
    request = urllib.request.Request(url, headers=dict(headers), method=method)  # noqa: S310 - http only to loopback
    try:
        with urllib.request.build_opener(_Redirects).open(request, timeout=TIMEOUT_S) as reply:
            status, found, body = reply.status, reply.headers, reply.read(MAX_ANSWER_BYTES)
    except urllib.error.HTTPError as error:
        with error:
            status, found, body = error.code, error.headers, b""
    return Answer(status, {name.lower(): value for name, value in found.items()}, body)


def pinned(image: Image, user: str = "", password: str = "", ask: Ask = ask) -> Image:
    """Return the image by its digest; unchanged if it has one. Raises UsageError with one sentence."""
    if image.digest:
        return image
    login = _basic(user, password) if user else {}
    try:
        reply = _request_manifest(ask, image, login)
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = getattr(error, "reason", None) or error
        raise UsageError(
            f"{image.registry} does not resolve {image} ({why or type(error).__name__}): name the image by its "
            f"digest, docker://{image.registry}/{image.repository}@sha256:…"
        ) from error
    digest = reply.headers.get("docker-content-digest", "")
    if reply.status in (401, 403):
        raise UsageError(
            f"{image.registry} refuses {image} to {f'user {user}' if user else 'anonymous users'}: set "
            f"{REGISTRY_USER} and {REGISTRY_PASSWORD} in the job's env"
        )
    if reply.status == 404:
        raise UsageError(f"{image.registry} has no {image}: check its name and tag")
    if not reply.is_success or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise UsageError(
            f"{image.registry} answered {reply.status} without a digest for {image}: name the digest instead"
        )
    return Image(image.registry, image.repository, digest=digest)


def _basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


def _request_manifest(ask: Ask, image: Image, login: Mapping[str, str]) -> Answer:
    scheme = "http" if _ON_THIS_COMPUTER.fullmatch(image.registry) else "https"
    base = _HUB_API if image.registry == HUB else f"{scheme}://{image.registry}"
    url, headers = f"{base}/v2/{image.repository}/manifests/{image.tag}", {"Accept": _ACCEPT}
    reply = ask("HEAD", url, headers)
    challenge = reply.headers.get("www-authenticate", "")
    if reply.status != 401 or not challenge:
        return reply
    if challenge.lower().startswith("basic"):
        return ask("HEAD", url, {**headers, **login}) if login else reply
    fields = dict(_PARAMETER.findall(challenge))
    if not fields.get("realm", "").startswith(("https://", f"{scheme}://")):
        return reply  # a password is never sent in the clear
    params = urlencode({key: fields[key] for key in ("service", "scope") if key in fields})
    token_reply = ask("GET", f"{fields['realm']}?{params}" if params else fields["realm"], login)
    if not token_reply.is_success:
        return token_reply
    raw = json.loads(token_reply.body)
    token = (raw.get("token") or raw.get("access_token")) if isinstance(raw, dict) else ""
    if not token:
        raise ValueError(f"{fields['realm']} answered without a token")
    return ask("HEAD", url, {**headers, "Authorization": f"Bearer {token}"})
