"""What is remembered outside the journal: error codes that no table has, and clouds that deny every call."""

from __future__ import annotations

from supervisor.planner.world import MAX_CODES, Denial, VolatileState

# -- unknown error codes -----------------------------------------------------------------------------------


def test_an_error_code_is_new_once_per_cloud() -> None:
    first, is_new = VolatileState().with_unknown_code("aws", "Strange")
    assert (first.unknown_codes, is_new) == ((("aws", "Strange"),), True)
    assert first.with_unknown_code("aws", "Strange") == (first, False)
    other, is_new = first.with_unknown_code("gcp", "Strange")
    assert (other.unknown_codes, is_new) == ((("aws", "Strange"), ("gcp", "Strange")), True)


def test_of_many_error_codes_the_oldest_is_forgotten() -> None:
    codes = tuple(("aws", f"Code{number}") for number in range(MAX_CODES))
    after, _ = VolatileState(unknown_codes=codes).with_unknown_code("aws", "Strange")
    assert after.unknown_codes == (*codes[1:], ("aws", "Strange"))


# -- clouds that deny every call ---------------------------------------------------------------------------

AWS = Denial("no role", 15.0, 15.0)
BOTH = VolatileState().with_denial("aws", "no role", 15.0).with_denial("local", "expired", 20.0, proof_s=60.0)


def test_each_cloud_has_its_denial_with_its_time() -> None:
    assert BOTH.denials == {"aws": AWS, "local": Denial("expired", since=20.0, until=80.0)}


def test_a_further_denial_has_the_newest_message_and_began_with_the_first() -> None:
    after = BOTH.with_denial("local", "revoked", 30.0)
    assert after.denials == {"aws": AWS, "local": Denial("revoked", since=20.0, until=80.0)}
    later = BOTH.with_denial("local", "revoked", 30.0, proof_s=60.0)
    assert later.denials["local"].until == 90.0


def test_a_denial_is_over_once_a_call_is_accepted_until_the_next_is_denied() -> None:
    over = BOTH.without_denial("local")
    assert over.denials == {"aws": AWS}
    assert over.with_denial("local", "expired", 25.0).denials["local"] == Denial("expired", since=25.0, until=25.0)
    assert VolatileState().without_denial("local") == VolatileState()
