"""For tests of bootstrap's plans: a fresh machine, a setup, golden files, and files that stand for a machine's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from spotsup.archive import Archive

from bootstrap.decision import Decision
from bootstrap.facts import Facts, System
from bootstrap.gpu.facts import read_gpu
from bootstrap.model import Again, Command, Reboot, Run, Setup, Skip, Unfit, Upload
from bootstrap.network.facts import read_network

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "bootstrap"


def a_setup(**changes: Any) -> Setup:
    value: dict[str, Any] = {
        "node": "n1",
        "agent_config": b'{"job":"j"}',
        "code": Archive.of(b"code"),
        "trainer": Archive.of(b"trainer"),
    }
    return Setup(**(value | changes))


FRESH = Facts("u", "/home/u", "b", 9999, python="/usr/bin/python3", python_version=(3, 12, 1), torch=True)


def as_json(decision: Decision) -> Any:
    """A decision as golden files show it."""
    match decision:
        case Skip(reason):
            return {"skip": reason}
        case Unfit(reason):
            return {"unfit": reason}
        case commands:
            return [command_as_json(command) for command in commands]


def command_as_json(command: Command) -> dict[str, Any]:
    """A command as golden files show it."""
    match command:
        case Upload(what, path, mode, data):
            return {"upload": what, "path": path, "mode": f"{mode:04o}", "content": data.decode().splitlines()}
        case Run(what, script, timeout_s, as_root, stdin):
            more: dict[str, Any] = {"as_root": True} if as_root else {}
            more |= {"stdin": stdin.decode().splitlines()} if stdin else {}
            return {"run": what, **more, "script": script.strip().splitlines(), "timeout_s": timeout_s}
        case Reboot(what, timeout_s):
            return {"reboot": what, "timeout_s": timeout_s}
        case Again(what):
            return {"again": what}


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def texts_of(case: Any) -> dict[str, str]:
    """A machine's texts; in the files they are lists of lines."""
    return {name: text if isinstance(text, str) else "\n".join(text) for name, text in case["texts"].items()}


def gpu_facts_of(case: Any) -> Facts:
    """The machine of a golden file about GPUs."""
    return replace(FRESH, system=System(**case["system"]), gpu=read_gpu(texts_of(case)))


def network_facts_of(case: Any) -> Facts:
    """The machine of a golden file about networks."""
    return replace(FRESH, system=System(**case["system"]), network=read_network(texts_of(case)))


def a_bus(folder: Path, *devices: tuple[str, str, str]) -> None:
    for number, values in enumerate(devices):
        device = folder / "bus" / "pci" / "devices" / f"0000:00:{number:02x}.0"
        device.mkdir(parents=True)
        for name, value in zip(("vendor", "device", "class"), values, strict=True):
            (device / name).write_text(f"{value}\n")


def a_program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
