"""What is said about the members of an etcd."""

from __future__ import annotations

from supervisor.journal.etcd_members import Seen, judged

A, B, C = (Seen(f"https://{name}:2379", version="3.5.33") for name in "abc")
AWAY = Seen("https://c:2379", "Connection refused")


def said(seen: list[Seen], count: int = 3) -> list[tuple[str, bool, str]]:
    return [(each.what, each.ok, each.message) for each in judged(seen, count, lambda _: "start it")]


def test_members_that_serve_are_said_with_their_versions() -> None:
    newer = Seen(C.endpoint, version="3.6.14")
    assert said([A, B, newer]) == [("members", True, "3 of 3 members serve, etcd 3.5.33, 3.6.14")]


def test_a_member_that_is_away_is_said_with_how_many_more_may_be_lost() -> None:
    (found,) = said([A, B, AWAY])
    assert found[1:] == (
        False,
        "2 of 3 members serve, and none more may be lost: https://c:2379: Connection refused (start it)",
    )
    (found,) = said([A, AWAY, AWAY])
    assert "1 of 3 members serve, which is no majority: " in found[2]
    five = [A, B, C, Seen("https://d:2379", version="3.5.33"), Seen("https://e:2379", "timed out")]
    assert "and 1 more may be lost" in said(five, 5)[0][2]


def test_what_else_may_be_wrong() -> None:
    assert "etcd has 3 members, and only 2 are named" in said([A, B])[0][2]
    assert "is etcd 3.3.27: 3.4 or newer is needed" in said([A, B, Seen("https://c:2379", version="3.3.27")])[1][2]
    late = Seen("https://c:2379", version="3.5.33", ahead_s=-41.7)
    assert said([A, B, late])[1] == (
        "clock",
        False,
        "the clock of https://c:2379 is 42 s behind this computer's: set both by NTP",
    )
