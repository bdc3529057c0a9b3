"""Runs TensorBoard on a node until stdin closes. Sent as text by cli/tensorboard.py: any Python from 3.9 on.

Arguments: the agent's configuration, port, the address to show, and NAME=TASK_ID for each run.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

_START_S = 120.0


def main(config_file: str, port: str, shown: str, *runs: str) -> int:
    """Return the exit code."""
    with open(os.path.expanduser(config_file), encoding="utf-8") as file:  # noqa: PTH111, PTH123 - small and fast
        config = json.load(file)
    folder = config.get("output", "")
    if not folder:
        return _failed("the job has no output folder: it needs `storage` that its nodes share")
    base = os.path.dirname(os.path.dirname(folder))  # noqa: PTH120 - one run's folder is BASE/TASK_ID/output
    folders = [(name, os.path.join(base, task, "output")) for name, _, task in (run.partition("=") for run in runs)]  # noqa: PTH118
    logdir = (
        ["--logdir", folders[0][1]]
        if len(folders) == 1
        else ["--logdir_spec", ",".join(f"{name}:{path}" for name, path in folders)]
    )
    python = config["python"]
    if subprocess.run([python, "-c", "import tensorboard"], capture_output=True, check=False).returncode:
        return _failed("tensorboard is not in the job's environment: add it to its requirements")
    with tempfile.TemporaryFile() as errors:
        command = [python, "-m", "tensorboard.main", *logdir, "--host", "127.0.0.1", "--port", port]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
        threading.Thread(target=_end_with_stdin, args=(child,), daemon=True).start()
        if _answers(child, int(port)):
            print(f"TensorBoard of {', '.join(name for name, _ in folders)}: {shown}  (Ctrl-C ends it)", flush=True)
        code = child.wait()
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().splitlines()[-5:]
    if code > 0:
        return _failed(f"TensorBoard ended with status {code}: {' / '.join(said)}")
    return 0


def _end_with_stdin(child: subprocess.Popen[bytes]) -> None:
    while os.read(0, 4096):
        pass
    child.terminate()


def _answers(child: subprocess.Popen[bytes], port: int) -> bool:
    until = time.monotonic() + _START_S
    while child.poll() is None and time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return True
        time.sleep(0.1)
    return False


def _failed(why: str) -> int:
    sys.stderr.write(f"spotsupctl: {why}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
