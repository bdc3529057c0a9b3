"""Hostile inputs: paths, bombs, and texts that are code for a browser or a shell."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import resource
import shlex
import tarfile
import zipfile
from typing import Any

import pytest
from spotsup.archive import MAX_ENTRIES, Archive
from spotsup.errors import PackError

from bootstrap.environment import lock
from bootstrap.environment.lock import MAX_UNPACKED_BYTES
from supervisor.api.security.gate import MAX_BLOB_BYTES, MAX_BODY_BYTES
from supervisor.unused_archives import MAX_UNUSED
from tests.support.hostile import Site, Table
from tests.support.whole_api import token_of

INPUTS = Table()
row = INPUTS.row

# -- paths -------------------------------------------------------------------------------------------------------------

SPELLINGS = (
    "/v1/jobs/..%2fanns/cancel", "/v1/jobs/%2e%2e/jobs/anns/cancel", "/v1/jobs/x/../anns/cancel",
    "/v1/jobs/anns%2fcancel", "/v1//jobs/anns/cancel", "/V1/jobs/anns/cancel", "/v1/jobs/ANNS/cancel",
    "/v1/jobs/anns%00/cancel", "/v1/jobs/anns.0/cancel", "/v1/jobs/anns;x/cancel", "/v1/jobs/anns%0d%0ax:%20y/cancel",
    "/v1/jobs/%61nns/cancel",
)  # fmt: skip


@row("`..`, `%2e%2e` and `//` in the address of a file of the dashboard", "404, 401")
def files_elsewhere(site: Site) -> None:
    own = re.findall(r'href="(/static/\w+)/', site.ask("", "GET", "/login").body.decode())[0]
    for name in ("../../routes.py", "..%2f..%2froutes.py", "%2e%2e/routes.py", "/etc/passwd", "dashboard.css%00.py"):
        reply = site.ask("", "GET", f"{own}/{name}")
        assert (reply.status, b"import" in reply.body) in {(404, False), (401, False)}, name


@row(
    "other spellings of the path to somebody else's job: `..`, `%2f`, a zero byte, a line break",
    "403, 404",
)
def other_spellings(site: Site) -> None:
    for path in SPELLINGS:
        reply = site.ask("bob", "POST", path, {})
        assert reply.status in {307, 403, 404, 405, 409}, path
        assert "x" not in reply.headers


@row("places outside of a job: `environment: ../../x.txt`, mounts at `/etc`, checkpoints at `/mnt/../etc`", "422")
def places_elsewhere(site: Site) -> None:
    mounted: list[dict[str, Any]] = [
        {"storage": [{"mount": place, "nfs": "server:/x"}]} for place in ("/etc", "/mnt/../etc", "etc", "/usr/lib")
    ]
    lists = [{"environment": place} for place in ("../../x.txt", "/etc/x.txt", "a//x.txt")]
    for spec in (*mounted, *lists, {"checkpoints": "/mnt/../etc"}, {"checkpoints": "s3://bucket/../other"}):
        assert site.check(**spec) == 422, spec


# -- bombs -------------------------------------------------------------------------------------------------------------


@row("JSON of a hundred thousand levels, numbers of thousands of digits, NaN", "400, 422")
def nested(site: Site) -> None:
    bombs = (b"[" * 100_000, b'{"a":' * 100_000, b'{"desired":1' + b"0" * 5000 + b"}", b'{"desired":NaN}', b"\xff\xfe")
    for bomb in bombs:
        reply = site.ask("ann", "POST", "/v1/jobs/anns/scale", bomb, content_type="application/json")
        assert (reply.status in {400, 422}, len(reply.body) < 2000) == (True, True), reply


@row("a login form of many fields; times that no calendar has; a schedule that never comes", "401, 422")
def odd_forms_and_times(site: Site) -> None:
    reply = site.ask("", "POST", "/login", b"a=&" * 20, content_type="application/x-www-form-urlencoded")
    assert reply.status == 401, reply
    work = {"work": "1h", "market": "on-demand"}
    for spec in (
        {"finish_by": f"{'9' * 40}d", **work},
        {"finish_by": "0001-01-01T00:00+14:00", **work},
        {"start_after": "9999-12-31T23:59-14:00"},
        {"schedule": "0 0 31 2,4,6,9,11 *"},
    ):
        assert site.check(**spec) == 422, spec


@row("a body beyond 1 MiB, code beyond 32 MiB", "413, before any of it is read")
def large(site: Site) -> None:
    for line, limit in (("POST /v1/check", MAX_BODY_BYTES), ("PUT /v1/blobs", MAX_BLOB_BYTES)):
        begin = f"{line} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token_of('bob')}\r\n"
        assert site.raw(f"{begin}content-length: {limit + 1}\r\n\r\n") == {413}


@row("archive after archive that no job uses", "each user's newest 64 MiB and 100 are kept")
def archives_without_a_job(site: Site) -> None:
    for number in range(MAX_UNUSED + 3):
        assert site.ask("bob", "PUT", "/v1/blobs", b"%d" % number).status == 200
    assert site.ask("ann", "PUT", "/v1/blobs", b"ann's").status == 200
    world = site.https.world
    archives = {key.split("/")[4] for key in world.etcd.keys if key.startswith(world.journal.blobs_key)}
    kept = {hashlib.sha256(b"%d" % number).hexdigest() for number in range(MAX_UNUSED + 3)} & archives
    assert len(kept) == MAX_UNUSED
    assert hashlib.sha256(b"ann's").hexdigest() in archives


@row("a body that is compressed, a thousandfold", "400: none is unpacked")
def compressed(site: Site) -> None:
    bomb = gzip.compress(bytes(20_000_000))
    headers = {"content_encoding": "gzip", "content_type": "application/json"}
    assert site.ask("bob", "POST", "/v1/check", bomb, **headers).status == 400


def is_refused(site: Site, code: bytes, why: str) -> None:
    """The daemon stores it, and looks into it before it prepares nodes: with bounds that are a twentieth of the real
    ones, so that the test is quick."""
    assert len(code) <= MAX_BLOB_BYTES
    assert site.ask("bob", "PUT", "/v1/blobs", code).status == 200
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lock, "MAX_UNPACKED_BYTES", MAX_UNPACKED_BYTES // 20)
        patch.setattr(lock, "MAX_ENTRIES", MAX_ENTRIES // 20)
        with pytest.raises(PackError, match=why):
            lock.lock_of(Archive.of(code), "requirements.txt")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 100_000


def head(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Of a member of a tar."""
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def with_zeros(begin: bytes) -> bytes:
    """And 256 MiB. Members of gzip follow one another (RFC 1952, 2.2)."""
    return gzip.compress(begin) + gzip.compress(bytes(1 << 24)) * 16


@row("code that unpacks to gigabytes", "refused at 1 GB, without filling memory")
def tar_bomb(site: Site) -> None:
    is_refused(site, with_zeros(head("x", 1 << 28)), "unpacks to more than")


@row("code with a million files, or with a name of gigabytes", "refused, without filling memory")
def tar_of_names(site: Site) -> None:
    is_refused(site, gzip.compress(head("x", 0) * (MAX_ENTRIES // 20 + 1)), "more than 5000 files")
    for kind in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE):
        is_refused(site, with_zeros(head("x", 1 << 28, kind)), "a name of")
    chain = (head("x", 1, tarfile.GNUTYPE_LONGNAME) + b"y" * 512) * 5000
    is_refused(site, gzip.compress(chain), "cannot be unpacked")


@row("code that is no archive, or is a zip bomb", "refused")
def zip_bomb(site: Site) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("requirements.txt", bytes(20_000_000))
    for code in (made.getvalue(), b"", b"\x1f\x8b", gzip.compress(b"x" * 5000), gzip.compress(bytes(9999))[:-20]):
        is_refused(site, code, "cannot be unpacked|not in the code")


# -- code for others ---------------------------------------------------------------------------------------------------

HTML = "<img src=x onerror=alert(1)>\"'{{7*7}}</script><script>alert(1)</script>"


@row("HTML in every text of a job and of a pause, which the dashboard shows", "shown as text; a policy runs no script")
def stored_html(site: Site) -> None:
    texts = {"run": f"t.py {shlex.quote(HTML)}", "setup": HTML, "env": {"A": HTML}}
    assert site.submit("bob", name="html", **texts).status == 200
    assert site.ask("root", "POST", "/v1/daemon/pause", {"reason": HTML}).status == 200
    try:
        for path in ("/", "/fleet", "/queue", "/money", "/jobs/html", "/jobs/html/logs"):
            text = site.page(path)
            assert "&lt;img src=x onerror=alert(1)&gt;" in text or path == "/jobs/html/logs", path
            assert not re.search(r"<img|<script>|49</script", text), path
    finally:
        assert site.ask("root", "POST", "/v1/daemon/resume").status == 200
        assert site.ask("bob", "POST", "/v1/jobs/html/cancel").status == 200


@row("HTML in the name of a job, of a variable, or in a page's address", "422; in an address: shown as text")
def named_html(site: Site) -> None:
    for spec in ({"name": HTML}, {"env": {HTML: "x"}}, {"preload": [HTML]}, {"placement": {"cloud": HTML}}):
        assert site.check(**spec) == 422, spec
    quoted = "%3Cimg%20src=x%20onerror=alert(1)%3E"
    for path in (
        f"/jobs/{quoted}",
        f"/jobs/{quoted}/logs",
        f"/jobs/anns?window={quoted}",
        f"/jobs/anns/logs?node={quoted}",
    ):
        assert "<img" not in site.page(path), path


@row("shell metacharacters in what becomes part of a command: names of jobs, variables, modules, mounts", "422")
def shell(site: Site) -> None:
    for text in ("$(id)", "a;id", "a|id", "a\nid", "a'b", 'a"b', "a b", "a\0b"):
        assert site.check(name=text) == 422, text
        assert site.check(env={text: "x"}) == 422, text
        assert site.check(preload=[text]) == 422, text
        for mount in ({"mount": f"/mnt/{text}", "nfs": "server:/x"}, {"mount": "/mnt/x", "nfs": f"{text}:/x"}):
            assert site.check(storage=[mount]) == 422, mount
