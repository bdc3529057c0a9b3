"""The leader's name, from the value of the leader key."""

from __future__ import annotations

import pytest

from supervisor.runtime.leader import leader_name


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (b'{"name": "vm:17"}', "vm:17"),
        (b'{"name": "vm:17", "since": 5}', "vm:17"),
        (b"vm:17", "an unknown daemon"),
        (b'["vm:17"]', "an unknown daemon"),
        (b"\xff", "an unknown daemon"),
        (b"", "an unknown daemon"),
    ],
)
def test_a_leader_key_that_no_daemon_wrote_is_an_unknown_daemon(value: bytes, name: str) -> None:
    assert leader_name(value) == name
