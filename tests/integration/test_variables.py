"""A job's variables, as a real shell reads them."""

from __future__ import annotations

import subprocess

import pytest

from bootstrap.variables import quoted


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("PATH", "/opt/my bin:$PATH", "/opt/my bin:/usr/bin"),
        ("PATH", "${PATH}:/opt/bin", "/usr/bin:/opt/bin"),
        ("PATH", "/opt/bin", "/opt/bin:/usr/bin"),
        ("PATH", "/opt/$PATHS", "/opt/$PATHS:/usr/bin"),
        ("LD_LIBRARY_PATH", "/a:$LD_LIBRARY_PATH:/b", "/a:/lib:/b"),
        ("LD_LIBRARY_PATH", "/a", "/a"),
        ("PYTHONPATH", "/a:$PYTHONPATH", "/a:$PYTHONPATH"),
        ("PASSWORD", "a$b'\"`x`$", "a$b'\"`x`$"),
    ],
)
def test_search_paths_may_name_the_machines_own(name: str, value: str, expected: str) -> None:
    script = f'export {name}={quoted(name, value)}; printf %s "${name}"'
    environ = {"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/lib"}
    done = subprocess.run(["/bin/sh", "-euc", script], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == expected


def test_a_search_path_that_the_machine_has_not_is_empty() -> None:
    script = f"export LD_LIBRARY_PATH={quoted('LD_LIBRARY_PATH', '/a:$LD_LIBRARY_PATH')}; echo $LD_LIBRARY_PATH"
    assert subprocess.run(["/bin/sh", "-euc", script], env={}, capture_output=True, check=True).stdout == b"/a:\n"
