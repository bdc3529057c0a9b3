"""A registry of container images on a loopback address, and an image made of this computer's own interpreter."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

from tests.support.serving import serving

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
MARK = "/etc/made-for-the-test"


class Registry(ThreadingHTTPServer):
    """Serves one repository. `login`: "user:password" that it requires, "" for none."""

    daemon_threads = True

    def __init__(self, login: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.login = login
        self.manifests: dict[str, bytes] = {}
        self.blobs: dict[str, Path] = {}
        self.requests: list[str] = []

    @property
    def host(self) -> str:
        """The first part of an image's name."""
        return f"127.0.0.1:{self.server_address[1]}"

    def add(self, tag: str, blobs: Mapping[str, Path], manifest: bytes) -> str:
        """Add an image under `tag`; returns its digest."""
        digest = digest_of(manifest)
        self.blobs |= blobs
        self.manifests |= {tag: manifest, digest: manifest}
        return digest


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Registry
    kinds: ClassVar = {"manifests": MANIFEST, "blobs": "application/octet-stream"}

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        self.server.requests.append(self.path)
        if self.server.login and self.headers.get("authorization") != f"Basic {_base64(self.server.login)}":
            self._reply(401, {"www-authenticate": 'Basic realm="test"'}, b"")
            return
        if self.path in ("/v2", "/v2/"):
            self._reply(200, {}, b"{}" if body else b"")
            return
        found = re.fullmatch(r"/v2/[a-z0-9/_-]+/(manifests|blobs)/([^/]+)", self.path)
        if found and found[1] == "manifests" and found[2] in self.server.manifests:
            manifest = self.server.manifests[found[2]]
            headers = {"content-type": MANIFEST, "docker-content-digest": digest_of(manifest)}
            self._reply(200, headers, manifest if body else b"", len(manifest))
        elif found and found[1] == "blobs" and found[2] in self.server.blobs:
            self._send(self.server.blobs[found[2]], body=body)
        else:
            self._reply(404, {}, b"")

    def _reply(self, status: int, headers: Mapping[str, str], data: bytes, length: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data) if length is None else length))
        self.end_headers()
        self.wfile.write(data)

    def _send(self, path: Path, *, body: bool) -> None:
        self.send_response(200)
        self.send_header("content-length", str(path.stat().st_size))
        self.end_headers()
        if body:
            with path.open("rb") as file:
                while data := file.read(1 << 20):
                    self.wfile.write(data)


@contextmanager
def registry(login: str = "") -> Iterator[Registry]:
    """A running registry."""
    with serving(Registry(login)) as server:
        yield server


def digest_of(data: bytes) -> str:
    """The digest by which registries name content."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def image_with_torch(folder: Path) -> tuple[dict[str, Path], bytes]:
    """This computer's python3 with its torch, the libraries it needs and nothing else: blobs, and the manifest."""
    import torch

    layer = folder / "layer.tar"
    with tarfile.open(layer, "w") as tar:
        python = Path(os.path.realpath(sys.executable))
        _add_link(tar, "usr/bin/python3", str(python))
        tar.add(python, str(python)[1:])
        standard = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix, "base": sys.base_prefix}))
        tar.add(standard, str(standard)[1:], filter=lambda info: None if _unwanted(info.name) else info)
        packages = Path(torch.__file__).parents[1]
        site = f"{str(standard)[1:]}/site-packages"
        for entry in sorted(packages.iterdir()):
            if entry.suffix != ".pth":
                tar.add(entry, f"{site}/{entry.name}", filter=lambda info: None if _unwanted(info.name, site) else info)
        for library in sorted(
            _libraries([python, *standard.glob("lib-dynload/*.so"), *packages.glob("torch/lib/*.so")])
        ):
            tar.add(os.path.realpath(library), library[1:])
        for name in ("tmp", "etc", "proc", "sys", "dev"):
            _add_folder(tar, name)
        _add_file(tar, MARK[1:], b"yes\n")
    with layer.open("rb") as file:
        digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    config = folder / "config.json"
    text = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [digest]}}
    config.write_text(json.dumps(text))
    named = digest_of(config.read_bytes())
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, "digest": named, "size": config.stat().st_size},
        "layers": [{"mediaType": LAYER, "digest": digest, "size": layer.stat().st_size}],
    }
    return {digest: layer, named: config}, json.dumps(manifest).encode()


def _unwanted(name: str, below: str = "") -> bool:
    """Large and not needed for training; the interpreter's packages are added from elsewhere."""
    inner = name.removeprefix(below)
    return "/__pycache__" in inner or (not below and "/site-packages" in inner) or "/torch/include" in inner


def _libraries(programs: list[Path]) -> set[str]:
    found = set()
    for program in programs:
        output = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
        found |= set(re.findall(r"^\s*(?:\S+ => )?(/\S+) \(0x", output, re.MULTILINE))
    return found


def _add_file(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    tar.addfile(info, io.BytesIO(data))


def _add_folder(tar: tarfile.TarFile, name: str) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
    tar.addfile(info)


def _add_link(tar: tarfile.TarFile, name: str, target: str) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    tar.addfile(info)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
