"""Lines of a long HTTP answer, however its bytes come."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Sequence
from itertools import pairwise

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st
from spotsup_trainer.etcd.stream import Chunks, LineStream

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
    ca = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    ca.issue_cert("etcd.example").configure_cert(server)
    ca.configure_trust(client)
    ours, theirs = socket.socketpair()
    all_sent, all_read = threading.Event(), threading.Event()

    def serve() -> None:
        with server.wrap_socket(theirs, server_side=True) as wrapped:
            wrapped.recv(1 << 16)
            wrapped.sendall(HEAD)
            for line in (b"a\n", b"b\n", b"c\nd"):
                wrapped.sendall(chunked([line]))
            all_sent.set()
            all_read.wait(10)
            wrapped.sendall(chunked([b"\n"]))

    serving = threading.Thread(target=serve)
    serving.start()
    connection = http.client.HTTPConnection("nowhere")
    connection.sock = client.wrap_socket(ours, server_hostname="etcd.example")
    connection.request("GET", "/")
    stream = LineStream(connection, connection.getresponse())
    try:
        assert all_sent.wait(10)
        assert stream.read() == [b"a", b"b", b"c"]
        assert stream.socket.gettimeout() is None
        all_read.set()
        assert [stream.read(), stream.read()] == [[b"d"], []]
    finally:
        all_read.set()
        stream.close()
        serving.join()


def test_an_answer_that_is_cut_off_ends() -> None:
    assert answered([chunked([b"a\n"]) + b"5\r\nab"]) == [[b"a"]]


def test_a_line_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotsup_trainer.etcd.stream._MAX_LINE_BYTES", 1000)
    assert answered([chunked([b"a\n"]), chunked([b"#" * 1001])]) == [[b"a"]]
