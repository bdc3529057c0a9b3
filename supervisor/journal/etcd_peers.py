"""Whether etcd's members accept each other by another CA. A member reads `--peer-trusted-ca-file` when it starts, and
never again (etcd's client/pkg/transport/listener.go)."""

from __future__ import annotations

import datetime as dt
import socket
import ssl
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from spotsup_trainer.etcd import Etcd

from supervisor.journal.certificates import TlsFiles, certificates_in, key_in, names_in, server_certificate

_CALL_S = 5.0


def refusing(etcd: Etcd, files: TlsFiles, ca: x509.Certificate) -> list[str]:
    """Members that would refuse a peer whose certificate the CA of `next-ca.key` signed, each with the remedy.

    A member that is alone has no peers. Raises EtcdError.
    """
    members = etcd.call("/v3/cluster/member/list", {})["members"]
    if len(members) == 1:
        return []
    urls = {url: str(each.get("name", "")) for each in members for url in each.get("peerURLs", ())}
    return refused_at({url: name for url, name in urls.items() if url.startswith("https:")}, files, ca)


def refused_at(members: dict[str, str], files: TlsFiles, ca: x509.Certificate) -> list[str]:
    """`members`: their names, by the URLs for their peers."""
    with tempfile.TemporaryDirectory() as folder:
        context = _as_peer(Path(folder), files, ca)
        found = {url: _problem(url, context) for url in members}
    return [
        f"etcd's member {members[url]} at {url} ({problem}): give its host this ca.crt, and restart it"
        for url, problem in found.items()
        if problem
    ]


def _as_peer(folder: Path, files: TlsFiles, ca: x509.Certificate) -> ssl.SSLContext:
    (known,) = certificates_in(files.cert)
    key = key_in(files.key)
    made = server_certificate(names_in(known), key, ca, key_in(files.next_ca_key), dt.datetime.now(dt.UTC))
    (folder / "peer.crt").write_bytes(made.public_bytes(Encoding.PEM))
    context = ssl.create_default_context(cafile=str(files.ca))
    context.check_hostname = False  # peers know each other by addresses that may be in no certificate of this host
    context.load_cert_chain(folder / "peer.crt", files.key)
    return context


def _problem(url: str, context: ssl.SSLContext) -> str:
    where = urlsplit(url)
    host, port = where.hostname or "", where.port or 2380
    try:
        with (
            socket.create_connection((host, port), timeout=_CALL_S) as raw,
            context.wrap_socket(raw, server_hostname=host) as connection,
        ):
            # With TLS 1.3 the server refuses a certificate only after the handshake.
            connection.sendall(b"GET /version HTTP/1.0\r\n\r\n")
            return "" if connection.recv(1) else "it hangs up"
    except OSError as error:
        return str(getattr(error, "reason", "") or error)
