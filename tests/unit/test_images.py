"""Container images: their names in job files, and the digest that a registry resolves a tag to."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from bootstrap.container.image import Image, image_of
from supervisor.cli.registry import Answer, ask, pinned
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
        service(empty_world()).submissions.submit(spec, "0" * 64, "submission")


class Registry:
    """One that requires a token of `realm`, with its answers in order."""

    def __init__(self, realm: str, *answers: Answer) -> None:
        wanted = {"www-authenticate": f'Bearer realm="{realm}",service="s",scope="repository:nvidia/pytorch:pull"'}
        self._left = [Answer(401, wanted), *answers]
        self.asked: list[tuple[str, str, Mapping[str, str]]] = []

    def __call__(self, method: str, url: str, headers: Mapping[str, str]) -> Answer:
        self.asked.append((method, url, headers))
        return self._left.pop(0)


def test_a_token_is_requested_where_the_registry_says() -> None:
    found = Answer(200, {"docker-content-digest": DIGEST})
    registry = Registry("https://auth.nvcr.io/token", Answer(200, {}, b'{"token": "t0ken"}'), found)
    assert pinned(Image("nvcr.io", "nvidia/pytorch", "x"), "me", "hunter2", registry) == IMAGE
    (_, first, plain), (method, url, login), (_, last, bearer) = registry.asked
    assert first == last == "https://nvcr.io/v2/nvidia/pytorch/manifests/x"
    assert (method, url) == ("GET", "https://auth.nvcr.io/token?service=s&scope=repository%3Anvidia%2Fpytorch%3Apull")
    assert ("Authorization" in plain, login["Authorization"]) == (False, "Basic bWU6aHVudGVyMg==")
    assert bearer["Authorization"] == "Bearer t0ken"


def test_no_password_is_sent_in_the_clear() -> None:
    registry = Registry("http://auth.nvcr.io/token")
    with pytest.raises(UsageError, match=r"nvcr.io refuses nvcr.io/nvidia/pytorch:x to user me"):
        pinned(Image("nvcr.io", "nvidia/pytorch", "x"), "me", "hunter2", registry)
    assert len(registry.asked) == 1


@pytest.mark.parametrize("body", [b"<html>maintenance</html>", b'["t0ken"]', b"{}", b"\xff"])
def test_a_registry_that_answers_nonsense_is_one_sentence(body: bytes) -> None:
    registry = Registry("https://auth.nvcr.io/token", Answer(200, {}, body))
    with pytest.raises(UsageError, match=r"^nvcr.io does not resolve nvcr.io/nvidia/pytorch:x \(.+\): name the"):
        pinned(Image("nvcr.io", "nvidia/pytorch", "x"), ask=registry)


def test_a_realm_that_is_no_address_is_one_sentence() -> None:
    def asked(method: str, url: str, headers: Mapping[str, str]) -> Answer:
        return ask(method, url, headers) if "auth" in url else Answer(401, {"www-authenticate": wrong})

    wrong = 'Bearer realm="https://auth.nvcr.io:port/token"'
    with pytest.raises(UsageError, match=r"^nvcr.io does not resolve nvcr.io/nvidia/pytorch:x \(.+\): name the"):
        pinned(Image("nvcr.io", "nvidia/pytorch", "x"), ask=asked)
