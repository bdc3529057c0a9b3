"""The connection of `spotsupctl` to a daemon that closes it, refuses before it has read all, or is none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from spotsup.transport import Transport

from supervisor.errors import CommandRefusedError, DaemonUnreachableError, SpotsupError, UsageError

Answer = Callable[[socket.socket], None]


def answered(status: str, body: str, *, reads: bool = True, closes: bool = False) -> Answer:
    """Answers one request. `reads`: all of it, before."""

    def answer(connection: socket.socket) -> None:
        received = connection.recv(65536)
        while reads and b"\r\n\r\n" not in received:
            received += connection.recv(65536)
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n"
        connection.sendall(f"{head}{'Connection: close' if closes else 'X: y'}\r\n\r\n{body}".encode())

    return answer


def ends(connection: socket.socket) -> None:
    """Answers nothing."""
    connection.recv(65536)


@contextmanager
def daemon(path: Path, connections: Sequence[Sequence[Answer]]) -> Iterator[Path]:
    """Answers so on one connection after another."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            for answers in connections:
                connection, _ = listening.accept()
                with closing(connection), suppress(OSError):
                    for answer in answers:
                        answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield path
        finally:
            thread.join(10.0)
            assert not thread.is_alive()


def test_a_connection_is_used_again_until_the_daemon_closes_it(tmp_path: Path) -> None:
    ok = answered("200 OK", "1")
    with daemon(tmp_path / "s", [[ok, ok], [ok]]) as path, closing(Transport(path)) as client:
        assert [client.get("/a"), client.get("/b", x="y z")] == [1, 1]
        (idle,) = client._idle
        assert idle.sock.recv(1, socket.MSG_PEEK) == b"", "the daemon has closed it"
        assert client.post("/c", {"x": 1}) == 1


def test_a_refusal_that_comes_before_all_was_sent_is_shown(tmp_path: Path) -> None:
    refusal = answered("413 Too Large", '{"code": 5, "error": "it is too large"}', reads=False, closes=True)
    with daemon(tmp_path / "s", [[refusal]]) as path, closing(Transport(path)) as client:
        with pytest.raises(CommandRefusedError, match="it is too large"):
            client.put("/v1/blobs", b"x" * 20_000_000)
        assert not client._idle


@pytest.mark.parametrize(
    ("answer", "error", "sentence"),
    [
        (answered("200 OK", "<html>"), SpotsupError, "spotsupd answered 200: <html>"),
        (answered("502 Bad Gateway", "a proxy"), SpotsupError, "spotsupd answered 502: a proxy"),
        (answered("422 No", '{"code": 2, "error": "so"}'), UsageError, "^so$"),
        (ends, DaemonUnreachableError, "no spotsupd answers at .*is it running"),
    ],
)
def test_each_other_answer_is_one_sentence(
    tmp_path: Path, answer: Answer, error: type[SpotsupError], sentence: str
) -> None:
    with (
        daemon(tmp_path / "s", [[answer]]) as path,
        closing(Transport(path)) as client,
        pytest.raises(error, match=sentence),
    ):
        client.get("/x")


def test_what_is_no_json_is_not_sent(tmp_path: Path) -> None:
    with closing(Transport(tmp_path / "nothing")) as client:
        with pytest.raises(UsageError, match="cannot be sent"):
            client.post("/v1/plan", {"hours": float("nan")})
        with pytest.raises(DaemonUnreachableError, match="No such file or directory"):
            client.post("/v1/plan", {"hours": 1.0})
