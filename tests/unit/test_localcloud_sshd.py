"""The configuration of a machine's sshd, and where its programs are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioners.localcloud.machine.spec import Folder, Spec
from provisioners.localcloud.machine.sshd import config_text
from provisioners.localcloud.programs import ProgramMissingError, find_program, tools_root

SPEC = Spec("local-x-0001", "local-a", "local.small", "127.64.0.1", "/usr/sbin/sshd", (9, 2), "/lib/sftp-server")


def test_paths_are_quoted() -> None:
    text = config_text(SPEC, Folder(Path('/a "b" %d\\c')), 2222)
    assert 'HostKey "/a \\"b\\" %d\\\\c/host_key"\n' in text
    assert 'AuthorizedKeysFile "/a \\"b\\" %%d\\\\c/authorized_keys"\n' in text
    assert 'SetEnv "HOME=/a \\"b\\" %d\\\\c/home" SPOTSUP_MACHINE=local-x-0001\n' in text


def test_the_sftp_server_may_lie_in_a_folder_with_a_space() -> None:
    text = config_text(SPEC._replace(sftp_server="/a b/sftp-server"), Folder(Path("/m")), 2222)
    assert "Subsystem sftp \"'/a b/sftp-server'\"\n" in text


def test_options_that_old_versions_do_not_know_are_left_out() -> None:
    folder = Folder(Path("/m"))
    assert "PerSourcePenalties" not in config_text(SPEC._replace(sshd_version=(9, 7)), folder, 2222)
    assert "PerSourcePenalties no\n" in config_text(SPEC._replace(sshd_version=(9, 8)), folder, 2222)
    unpacked = config_text(
        SPEC._replace(sshd_version=(10, 0), sshd_session="/u/sshd-session", sshd_auth="/u/sshd-auth"), folder, 2222
    )
    assert 'SshdSessionPath "/u/sshd-session"\n' in unpacked
    assert 'SshdAuthPath "/u/sshd-auth"\n' in unpacked


def test_programs_are_found_on_the_path_before_the_tools(tmp_path: Path) -> None:
    for root in ("on-path", "tools/usr/bin"):
        (tmp_path / root).mkdir(parents=True)
        (tmp_path / root / "a-program").touch(mode=0o755)
    tools, environ = tmp_path / "tools", {"PATH": str(tmp_path / "on-path")}
    assert find_program("a-program", tools, environ) == tmp_path / "on-path" / "a-program"
    assert find_program("a-program", tools, {"PATH": "/nowhere"}) == tools / "usr/bin/a-program"
    with pytest.raises(ProgramMissingError, match="another-program"):
        find_program("another-program", tools, environ)


def test_the_environment_names_the_tools_folder(tmp_path: Path) -> None:
    assert tools_root({"SPOTSUP_TOOLS": str(tmp_path)}) == tmp_path
