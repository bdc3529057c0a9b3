"""The configuration of a machine's sshd, and where its programs are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioners.localcloud.programs import ProgramMissingError, find_ssh_programs


def test_an_sshd_that_is_none_is_refused(tmp_path: Path) -> None:
    fake = tmp_path / "sshd"
    fake.write_text("#!/bin/sh\necho hello\n")
    fake.chmod(0o755)
    with pytest.raises(ProgramMissingError, match="hello"):
        find_ssh_programs(None, {"PATH": str(tmp_path)})
