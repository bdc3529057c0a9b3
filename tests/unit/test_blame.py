"""Failures that no other machine would spare a job, and such as pass, as programs print them."""

from __future__ import annotations

import pytest

from bootstrap.blame import OF_JOB, alike
from bootstrap.errors import BootstrapTimeoutError, CommandError, LoginShellError, UnfitError, UnreachableError

NO_PACKAGE = """\
ERROR: Could not find a version that satisfies the requirement nope-nope (from versions: none)
ERROR: No matching distribution found for nope-nope"""
PIP_AWAY = f"""\
WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken by \
'NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f1c>: Failed to establish a new \
connection: [Errno -3] Temporary failure in name resolution')': /simple/nope-nope/
{NO_PACKAGE}"""


@pytest.mark.parametrize(
    "printed",
    [
        NO_PACKAGE,
        "ls: cannot access '/no/such/folder': No such file or directory",
        "bash: line 3: conda: command not found",
        "bash: -c: line 2: syntax error: unexpected end of file",
        "bash: -c: line 1: unexpected EOF while looking for matching `\"'",
        "  × No solution found when resolving dependencies:\n  ╰─▶ Because nope was not found in the package registry",
        "Collecting async-timeout\nCollecting aiohttp-retry\nerror: subprocess-exited-with-error",
        "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
        "tar: This does not look like a tar archive",
    ],
)
def test_what_the_job_brings_fails_alike_on_each_machine(printed: str) -> None:
    assert alike("environment", 1, f"`x` ended with status 1: {printed.splitlines()[-1]}", printed)


@pytest.mark.parametrize(
    "printed",
    [
        PIP_AWAY,
        "curl: (28) Operation timed out after 30001 milliseconds with 0 bytes received",
        "ssh: connect to host github.com port 22: Connection timed out",
        "fatal: unable to access 'https://github.com/x/y/': The requested URL returned error: 502",
        "E: Failed to fetch http://deb.debian.org/x.deb  Temporary failure resolving 'deb.debian.org'",
        "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 1234 (unattended-upgr)",
        "error: Failed to fetch: `https://pypi.org/simple/x/`\n  Caused by: error sending request for url",
        "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://huggingface.co/x",
        "429 Client Error: Too Many Requests",
        "ReadTimeoutError: HTTPSConnectionPool(host='files.pythonhosted.org', port=443): Read timed out.",
        "net/http: TLS handshake timeout",
        "HTTP/1.1 504 Gateway Time-out",
        "OSError: [Errno 28] No space left on device",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver",
        "",
    ],
)
def test_what_may_pass_is_the_machines(printed: str) -> None:
    assert alike("environment", 1, f"`x` ended with status 1: {printed}", printed) == ""


@pytest.mark.parametrize("status", [124, 137, 139])
def test_time_limits_and_signals_are_the_machines(status: int) -> None:
    assert alike("environment", status, f"`x` ended with status {status}: so far", "so far") == ""


def test_numbers_and_paths_may_differ_and_step_status_and_last_line_may_not() -> None:
    one = alike("environment", 1, "`x` ended with status 1: /tmp/build-1a/setup.py: error 7", "e")
    assert one == alike("environment", 1, "`x` ended with status 1: /tmp/build-9/setup.py: error 8", "e")
    assert one != alike("code", 1, "`x` ended with status 1: /tmp/build-1a/setup.py: error 7", "e")
    assert one != alike("environment", 2, "`x` ended with status 2: /tmp/build-1a/setup.py: error 7", "e")
    assert one != alike("environment", 1, "`x` ended with status 1: /tmp/build-1a/setup.py: warning 7", "e")


def test_only_what_the_job_or_its_image_brings_may_be_at_fault() -> None:
    failed = {"node": "n1", "step": "environment", "exit_status": 1, "stderr": "no such package: nope"}
    assert CommandError("no such package", **failed, tried=True).of_job  # type: ignore[arg-type]
    assert CommandError("no such package", **failed).of_job == ""  # type: ignore[arg-type]
    certain = CommandError("no torch", node="n1", step="gpu-check", exit_status=OF_JOB, stderr="driver: timeout")
    assert certain.of_job, "a script says so itself"
    assert UnfitError("python3 cannot import torch", node="n1", step="environment", tried=True).of_job
    assert UnfitError("63 MB are free", node="n1", step="code").of_job == ""
    assert LoginShellError("it ends", node="n1", step="login", stderr="bye", tried=True).of_job
    assert UnreachableError("the connection broke", node="n1", step="environment").of_job == ""
    assert BootstrapTimeoutError("`x` did not end", node="n1", step="environment").of_job == ""
