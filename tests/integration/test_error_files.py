"""What a worker leaves in its error file, which its program may write as well."""

from __future__ import annotations

from pathlib import Path

import pytest
from spotsup_trainer.launcher.worker_context import failure_of


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", "3", '{"message": {}}', '{"message": {"extraInfo": []}}'])
def test_an_error_file_of_any_form_is_a_failure_of_the_program(tmp_path: Path, text: str) -> None:
    file = tmp_path / "error.json"
    file.write_text(text)
    found = failure_of(1, 42, 3, str(file))
    assert (found.local_rank, found.pid, found.exitcode) == (1, 42, 3)
    assert "traceback" in found.message


def test_the_message_of_an_error_file_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "error.json"
    file.write_text('{"message": "out of data", "timestamp": 7}')
    found = failure_of(0, 42, 1, str(file))
    assert (found.message, found.timestamp) == ("out of data", 7)
