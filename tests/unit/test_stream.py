"""Lines of a long HTTP answer, however its bytes come."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st
from spotsup_trainer.etcd.stream import Chunks, LineStream
from spotsup_trainer.etcd.tls import TlsSocket

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
contents = st.lists(st.binary(min_size=1, max_size=40), max_size=8)


def chunked(contents: Sequence[bytes]) -> bytes:
    return b"".join(b"%x;name=value\r\n%b\r\n" % (len(each), each) for each in contents)


@given(contents=contents, cuts=st.lists(st.integers(0, 400), max_size=10))
def test_the_content_comes_out_however_it_was_cut(contents: list[bytes], cuts: list[int]) -> None:
    raw = chunked(contents) + b"0\r\n\r\n"
    places = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    chunks = Chunks()
    found = b"".join(chunks.feed(raw[start:end]) for start, end in pairwise(places))
    assert found == b"".join(contents)
    assert chunks.ended


def test_what_is_no_chunk_is_refused() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        Chunks().feed(b"{}\r\n")


def answered(pieces: Sequence[bytes]) -> list[list[bytes]]:
    """What each `read` gives of an answer in such pieces; each is sent once the one before was read."""
    ours, theirs = socket.socketpair()
    connection = http.client.HTTPConnection("nowhere")
    connection.sock = ours
    reads: list[list[bytes]] = []
    go_on = threading.Semaphore(1)

    def serve() -> None:
        with theirs:
            theirs.recv(1 << 16)
            theirs.sendall(HEAD)
            for piece in pieces:
                assert go_on.acquire(timeout=10)
                theirs.sendall(piece)
            assert go_on.acquire(timeout=10)

    server = threading.Thread(target=serve)
    server.start()
    connection.request("GET", "/")
    stream = LineStream(connection, connection.getresponse())
    try:
        while lines := stream.read():
            reads.append(lines)
            go_on.release()
    finally:
        go_on.release()
        stream.close()
        server.join()
    return reads


def test_all_lines_that_have_come_come_at_once() -> None:
    many = chunked([b"a\n", b"b\n", b"c\nd"])
    assert answered([many, chunked([b"\n"]), chunked([b"e\n"]), b"0\r\n\r\n"]) == [[b"a", b"b", b"c"], [b"d"], [b"e"]]


def test_with_tls_too_all_lines_that_have_come_come_at_once() -> None:
    server, client = tls_pair()
    ours, theirs = socket.socketpair()
    head_read, all_sent, all_read = threading.Event(), threading.Event(), threading.Event()

    def serve() -> None:
        with server.wrap_socket(theirs, server_side=True) as wrapped:
            wrapped.recv(1 << 16)
            wrapped.sendall(HEAD)
            head_read.wait(10)  # else it is read together with however many lines have come by then
            for line in (b"a\n", b"b\n", b"c\nd"):
                wrapped.sendall(chunked([line]))
            all_sent.set()
            all_read.wait(10)
            with suppress(OSError):  # where the test failed before
                wrapped.sendall(chunked([b"\n"]))

    serving = threading.Thread(target=serve)
    serving.start()
    connection = http.client.HTTPConnection("nowhere")
    connection.sock = TlsSocket(ours, client, "etcd.example")
    connection.request("GET", "/")
    stream = LineStream(connection, connection.getresponse())
    head_read.set()
    try:
        assert all_sent.wait(10)
        assert stream.read() == [b"a", b"b", b"c"]
        all_read.set()
        assert [stream.read(), stream.read()] == [[b"d"], []]
    finally:
        all_read.set()
        stream.close()
        serving.join()


def tls_pair() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts of a server and of a client that trusts it."""
    ca = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    ca.issue_cert("etcd.example").configure_cert(server)
    ca.configure_trust(client)
    return server, client


@contextmanager
def tls_server(context: ssl.SSLContext, serve: Callable[[ssl.SSLSocket], None]) -> Iterator[socket.socket]:
    """The other end of a connection that is served by a thread."""
    ours, theirs = socket.socketpair()
    ours.settimeout(20.0)

    def run() -> None:
        with suppress(OSError), theirs, context.wrap_socket(theirs, server_side=True) as wrapped:
            serve(wrapped)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield ours
    finally:
        ours.close()
        thread.join()


def all_of(found: TlsSocket) -> bytes:
    pieces = []
    while piece := found.read_all():
        pieces.append(piece)
    return b"".join(pieces)


@pytest.mark.parametrize("says_so", [True, False])
def test_much_data_comes_whole_over_tls_and_its_end_is_one_whether_or_not_it_is_announced(says_so: bool) -> None:
    data = bytes(range(256)) * 4096  # more than one read, and than one record
    server, client = tls_pair()

    def serve(wrapped: ssl.SSLSocket) -> None:
        assert wrapped.recv(5) == b"hello"
        wrapped.sendall(data)
        if says_so:
            wrapped.unwrap()

    with tls_server(server, serve) as ours:
        found = TlsSocket(ours, client, "etcd.example")
        found.sendall(b"hello")
        assert all_of(found) == data


def test_a_certificate_of_another_name_or_ca_is_refused() -> None:
    server, client = tls_pair()
    for context, name in ((client, "another.example"), (ssl.create_default_context(), "etcd.example")):
        with tls_server(server, lambda _: None) as ours, pytest.raises(ssl.SSLCertVerificationError):
            TlsSocket(ours, context, name)


def test_a_peer_that_hangs_up_or_says_nothing_within_the_handshake_is_an_error_of_the_connection() -> None:
    _, client = tls_pair()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0.1)
        with pytest.raises(TimeoutError):
            TlsSocket(ours, client, "etcd.example")
        theirs.close()
        with pytest.raises(OSError):  # noqa: PT011 - reset or ended, as it comes
            TlsSocket(ours, client, "etcd.example")


def test_a_reader_of_a_tls_socket_that_is_shut_down_by_another_thread_ends() -> None:
    server, client = tls_pair()
    done = threading.Event()

    def wait(_: ssl.SSLSocket) -> None:
        done.wait(20.0)

    with tls_server(server, wait) as ours:
        found = TlsSocket(ours, client, "etcd.example")
        found.settimeout(None)
        read: list[bytes] = []
        reading = threading.Thread(target=lambda: read.append(found.read_all()))
        reading.start()
        found.shutdown(socket.SHUT_RDWR)
        reading.join(timeout=20.0)
        done.set()
        assert read == [b""]


def test_a_tls_socket_stays_open_until_what_reads_from_it_is_closed() -> None:
    server, client = tls_pair()
    with tls_server(server, lambda wrapped: wrapped.sendall(b"late")) as ours:
        found = TlsSocket(ours, client, "etcd.example")
        file = found.makefile("rb")
        found.close()
        assert file.read(4) == b"late"
        file.close()
        assert ours.fileno() == -1


def test_an_answer_that_is_cut_off_ends() -> None:
    assert answered([chunked([b"a\n"]) + b"5\r\nab"]) == [[b"a"]]


def test_a_line_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotsup_trainer.etcd.stream._MAX_LINE_BYTES", 1000)
    assert answered([chunked([b"a\n"]), chunked([b"#" * 1001])]) == [[b"a"]]
