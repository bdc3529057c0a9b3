"""Container images: their names in job files, and the digest that a registry resolves a tag to."""

from __future__ import annotations

import httpx
import pytest

from bootstrap.container.image import Image, image_of
from supervisor.cli.registry import pinned
from supervisor.errors import CommandRefusedError, UsageError
from supervisor.spec import parse_spec
from tests.sim.harness import empty_world, service

DIGEST = f"sha256:{'a' * 64}"
IMAGE = Image("nvcr.io", "nvidia/pytorch", digest=DIGEST)


@pytest.mark.parametrize(
    ("environment", "image"),
    [
        ("docker://pytorch/pytorch:2.9.0", Image("docker.io", "pytorch/pytorch", "2.9.0")),
        ("docker://python", Image("docker.io", "library/python", "latest")),
        ("docker://localhost/mine", Image("localhost", "mine", "latest")),
        ("docker://127.0.0.1:5000/a/b_c:x", Image("127.0.0.1:5000", "a/b_c", "x")),
        (f"docker://nvcr.io/nvidia/pytorch:25.01-py3@{DIGEST}", IMAGE),
        ("uv", None),
        ("image", None),
    ],
)
def test_images_are_named_as_docker_names_them(environment: str, image: Image | None) -> None:
    assert image_of(environment) == image


@pytest.mark.parametrize("text", ["", "UPPER", "a:b:c", "a@sha256:12", "a b", "nvcr.io/", "-x", "a/../b", "a$(id)"])
def test_text_that_names_no_image_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match="names no container image; write docker://"):
        parse_spec({"name": "job", "nodes": 1, "run": "t.py", "environment": f"docker://{text}"})


def test_setup_beside_an_image_and_an_image_without_its_digest_are_refused() -> None:
    spec = {"name": "job", "nodes": 1, "run": "t.py", "environment": "docker://python"}
    with pytest.raises(UsageError, match="build it into the image"):
        parse_spec({**spec, "setup": "pip install x"})
    with pytest.raises(CommandRefusedError, match=r"docker.io/library/python:latest has no digest"):
        service(empty_world()).submit(spec, "0" * 64, "submission")


def tokens(realm: str, *answers: httpx.Response) -> tuple[httpx.Client, list[httpx.Request]]:
    """A client of a registry that requires a token of `realm`, their answers in order, and the requests."""
    requests: list[httpx.Request] = []
    wanted = {"www-authenticate": f'Bearer realm="{realm}",service="s",scope="repository:nvidia/pytorch:pull"'}
    left = [httpx.Response(401, headers=wanted), *answers]

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return left.pop(0)

    return httpx.Client(transport=httpx.MockTransport(answer)), requests


def test_a_token_is_requested_where_the_registry_says() -> None:
    found = httpx.Response(200, headers={"docker-content-digest": DIGEST})
    http, requests = tokens("https://auth.nvcr.io/token", httpx.Response(200, json={"token": "t0ken"}), found)
    assert pinned(Image("nvcr.io", "nvidia/pytorch", "x"), "me", "hunter2", http) == IMAGE
    assert dict(requests[1].url.params) == {"service": "s", "scope": "repository:nvidia/pytorch:pull"}
    assert requests[1].headers["authorization"].startswith("Basic ")
    assert requests[2].headers["authorization"] == "Bearer t0ken"


def test_no_password_is_sent_in_the_clear() -> None:
    http, requests = tokens("http://auth.nvcr.io/token")
    with pytest.raises(UsageError, match=r"nvcr.io refuses nvcr.io/nvidia/pytorch:x to user me"):
        pinned(Image("nvcr.io", "nvidia/pytorch", "x"), "me", "hunter2", http)
    assert len(requests) == 1


@pytest.mark.parametrize(
    ("realm", "answer"),
    [
        ("https://auth.nvcr.io/token", httpx.Response(200, text="<html>maintenance</html>")),
        ("https://auth.nvcr.io/token", httpx.Response(200, json=["t0ken"])),
        ("https://auth.nvcr.io/token", httpx.Response(200, json={})),
        ("https://auth.nvcr.io:port/token", httpx.Response(200, json={"token": "t0ken"})),
    ],
)
def test_a_registry_that_answers_nonsense_is_one_sentence(realm: str, answer: httpx.Response) -> None:
    http, _ = tokens(realm, answer)
    with pytest.raises(UsageError, match=r"^nvcr.io does not resolve nvcr.io/nvidia/pytorch:x \(.+\): name the"):
        pinned(Image("nvcr.io", "nvidia/pytorch", "x"), http=http)
