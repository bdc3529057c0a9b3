"""The dashboard in a browser's place: logging in over HTTPS, and the port of `spotsupctl dashboard`."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPMessage
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from spotsup.transport import Page, Transport

from supervisor.access import Role, TokenRecord, sha256_of, token_text
from supervisor.api.security.gate import COOKIE, Gate, Users
from supervisor.api.security.unix_socket import bind_socket
from supervisor.api.serving import ApiServer
from supervisor.cli.gateway import Gateway
from supervisor.errors import DaemonUnreachableError, UsageError
from supervisor.web.routes import HEADERS, add_dashboard
from tests.dashboard.clusters import one

SECRET = bytes(range(32))
TOKEN = token_text("0123456789ab", SECRET)
NOW = 1_000_000.0
RECORD = TokenRecord("0123456789ab", "ann", Role.VIEWER, sha256_of(SECRET), NOW, NOW + 3600)


def app_of(tokens: dict[str, TokenRecord]) -> FastAPI:
    """The dashboard, and one route of the API, behind the gate."""
    app = FastAPI(openapi_url=None)
    users = Users(lambda: tokens, lambda: NOW)
    app.add_middleware(Gate, lambda: app.routes, users, lambda _: None, list)
    add_dashboard(app, one().source(), users)

    @app.get("/v1/health")
    def health() -> dict[str, bool]:
        return {"ok": True}

    return app


@pytest.fixture
def tokens() -> dict[str, TokenRecord]:
    return {RECORD.id: RECORD}


class Browser:
    """Keeps cookies from one request to the next, as a browser does."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._cookies = httpx.Cookies()

    def get(self, path: str) -> httpx.Response:
        return asyncio.run(self._ask("GET", path))

    def post(self, path: str, **more: Any) -> httpx.Response:
        return asyncio.run(self._ask("POST", path, **more))

    async def _ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self._app, client=("192.0.2.7", 1))
        async with httpx.AsyncClient(
            transport=transport, base_url="https://spot.example.org", cookies=self._cookies
        ) as client:
            reply = await client.request(method, path, **more)
            self._cookies = client.cookies
            return reply


@pytest.fixture
def browser(tokens: dict[str, TokenRecord]) -> Browser:
    return Browser(app_of(tokens))


def log_in(browser: Browser, token: str = TOKEN, **headers: str) -> httpx.Response:
    return browser.post("/login", data={"token": token}, headers=headers)


# -- over HTTPS ------------------------------------------------------------------------------------------------


def test_without_a_token_every_page_leads_to_the_form_and_shows_nothing(browser: Browser) -> None:
    for path in ("/", "/fleet", "/queue", "/money", "/jobs/llama-8b-sft", "/jobs/llama-8b-sft/logs"):
        reply = browser.get(path)
        assert (reply.status_code, reply.headers["location"], reply.text) == (303, "/login", "")
    form = browser.get("/login")
    assert form.status_code == 200
    assert "llama" not in form.text
    assert form.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]


def test_a_token_opens_the_pages_and_its_cookie_is_for_them_alone(
    browser: Browser, tokens: dict[str, TokenRecord]
) -> None:
    reply = log_in(browser)
    assert (reply.status_code, reply.headers["location"]) == (303, "/")
    cookie = reply.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}={TOKEN};")
    for attribute in ("HttpOnly", "Secure", "SameSite=strict", "Path=/", "Max-Age=3600"):
        assert attribute in cookie
    assert "Domain" not in cookie
    page = browser.get("/")
    assert "llama-8b-sft" in page.text
    assert 'action="/logout"' in page.text
    assert page.headers["cache-control"] == "no-store"
    assert browser.get("/v1/health").status_code == 401, "the cookie is no key to the API"
    assert browser.get("/jobs/none").status_code == 404
    tokens.clear()
    refused = browser.get("/")
    assert (refused.status_code, refused.headers["location"]) == (303, "/login"), "one that is revoked opens nothing"
    assert "llama-8b-sft" not in refused.text


def test_logging_out_forgets_the_cookie(browser: Browser) -> None:
    log_in(browser)
    assert browser.post("/logout").headers["location"] == "/login"
    assert browser.get("/").headers["location"] == "/login"


@pytest.mark.parametrize("token", ["", "x", TOKEN[:-1] + "0", f"{TOKEN} " * 99])
def test_a_wrong_token_gets_no_cookie(browser: Browser, token: str) -> None:
    reply = log_in(browser, token)
    assert reply.status_code == 401
    assert "set-cookie" not in reply.headers
    assert "not valid" in reply.text


def test_wrong_tokens_are_throttled_and_the_right_one_still_opens(browser: Browser) -> None:
    assert {log_in(browser, "x").status_code for _ in range(20)} == {401, 429}
    assert log_in(browser).status_code == 303


def test_another_site_cannot_log_anyone_in(browser: Browser) -> None:
    assert log_in(browser, TOKEN, **{"sec-fetch-site": "cross-site"}).status_code == 403


def test_files_need_no_token_and_may_be_kept(browser: Browser) -> None:
    form = browser.get("/login").text
    for address in [part.split('"')[0] for part in form.split('href="')[1:]]:
        reply = browser.get(address)
        assert reply.status_code == 200
        assert "immutable" in reply.headers["cache-control"]
    assert browser.get("/static/0/dashboard.css").status_code == 404
    assert browser.get("/static/0/..%2froutes.py").status_code == 401, "that is no file"


# -- on the host -----------------------------------------------------------------------------------------------


@contextmanager
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    """The port of `spotsupctl dashboard`, in front of a real socket."""
    server = ApiServer(app_of({}), bind_socket(tmp_path / "s"))
    server.start()
    daemon = Transport(tmp_path / "s")
    with Gateway(daemon, 0) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield found
        finally:
            found.shutdown()
            thread.join()
            daemon.close()
            server.stop()


def test_the_link_lets_one_browser_in_and_only_to_the_pages(tmp_path: Path) -> None:
    with gateway(tmp_path) as found, httpx.Client(trust_env=False, timeout=10.0) as browser:
        address = found.link.partition("/?")[0]
        assert httpx.get(address, trust_env=False).status_code == 403
        link = found.link
        reply = browser.get(link)
        assert reply.status_code == 303
        assert "HttpOnly; SameSite=Strict" in reply.headers["set-cookie"]
        page = browser.get(f"{address}/jobs/llama-8b-sft?window=1h")
        assert page.status_code == 200
        assert "Timeline" in page.text
        assert page.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]
        assert httpx.get(link, trust_env=False).status_code == 403, "it is good for one use"
        for path in (
            "/v1/health",
            "/v1/nodes/x/login",
            "/metrics",
            "/login",
            "//v1/health",
            "/jobs/a/../../v1/health",
        ):
            assert browser.get(f"{address}{path}").status_code in {403, 404}, path
        asked: list[str] = []
        found.source.page = lambda target: asked.append(target) or Page(200, HTTPMessage(), b"")  # type: ignore[method-assign, func-returns-value]
        with socket.create_connection(("127.0.0.1", found.server_port)) as raw:
            host = f"127.0.0.1:{found.server_port}"
            cookie = f"spotsup-dashboard={found.session}"
            raw.sendall(f"GET http://evil.example/jobs/a HTTP/1.0\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n".encode())
            assert b" 200 " in raw.recv(100)
        assert asked == ["/jobs/a?"], "an address elsewhere is not followed"
        assert browser.get(address, headers={"host": f"evil.example:{found.server_port}"}).status_code == 400
        assert browser.post(address).status_code == 501


class Gone:
    """A daemon that does not answer."""

    def page(self, target: str) -> Page:
        raise DaemonUnreachableError("spotsupd does not answer")


def test_a_daemon_that_is_gone_is_one_sentence() -> None:
    with Gateway(Gone(), 0) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            with httpx.Client(trust_env=False, follow_redirects=True) as browser:
                reply = browser.get(found.link)
        finally:
            found.shutdown()
            thread.join()
    assert (reply.status_code, reply.text) == (502, "spotsupd does not answer\n")


def test_a_port_that_is_taken_is_one_sentence() -> None:
    with Gateway(Gone(), 0) as taken, pytest.raises(UsageError, match="choose another --port"):
        Gateway(Gone(), taken.server_port)
