"""Which etcd may take the place of the distribution's: by what it says about itself, and what its data are of."""

from __future__ import annotations

import pytest

from supervisor.installation.etcd_program import Version, refusal, too_old


def v(text: str) -> Version:
    found = Version.of(text)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("version", "keeps"),
    [
        *(
            ("3.4.23", False),
            ("3.4.44", False),
            ("3.5.1", False),
            ("3.5.32", False),
            ("3.6.13", False),
            ("3.7.0", False),
        ),
        *(("3.5.33", True), ("3.5.100", True), ("3.6.14", True), ("3.7.1", True), ("3.8.0", True), ("4.0.0", True)),
        ("2.9.99", False),
    ],
)
def test_an_etcd_keeps_to_its_users_from_some_version_of_each_minor_one_on(version: str, keeps: bool) -> None:
    assert v(version).keeps_users == keeps


@pytest.mark.parametrize(
    ("new", "running", "said"),
    [
        ("3.5.33", None, ""),
        ("3.7.1", None, ""),
        ("3.5.33", "3.4.23", ""),
        ("3.5.40", "3.5.33", ""),
        ("3.6.14", "3.5.33", ""),
        ("3.5.33", "3.5.40", ""),
        ("3.5.32", "3.4.23", "users of etcd 3.5.32 can be passed by: take 3.5.33, 3.6.14, 3.7.1 or newer of each"),
        ("3.6.14", "3.4.23", "goes to 3.6.14 by way of 3.5.33: take that one first, on all hosts"),
        ("3.9.0", "3.7.1", "goes to 3.9.0 by way of 3.8: take that one first"),
        ("3.5.33", "3.6.14", "etcd 3.6.14 runs here, and etcd cannot go back to 3.5.33"),
    ],
)
def test_etcd_goes_from_one_minor_version_to_the_next(new: str, running: str | None, said: str) -> None:
    found = refusal(v(new), v(running) if running else None)
    assert said in found if said else found == ""


def test_a_distributions_own_number_is_read() -> None:
    assert str(v("3.5.33+ds1-1")) == "3.5.33"
    assert Version.of("3.5") is None


def test_a_host_with_an_older_etcd_joins_none_that_has_left_its_minor_version() -> None:
    assert too_old(v("3.4.23"), []) == ""
    assert too_old(v("3.4.23"), [v("3.5.33"), v("3.4.23")]) == "", "it is on the way"
    assert too_old(v("3.6.14"), [v("3.5.33")]) == ""
    assert "here is 3.4.23, and the other hosts' is 3.5.33: give --etcd" in too_old(v("3.4.23"), [v("3.5.33")])
