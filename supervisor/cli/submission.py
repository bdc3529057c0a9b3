"""From a job file or options to what is submitted.

The daemon checks what the job asks for, so that nothing is checked twice; it is asked before the code is packed.
"""

from __future__ import annotations

import os
import shlex
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.errors import UsageError

if TYPE_CHECKING:
    from bootstrap import Archive
    from bootstrap.environment.lock import Lock

CODE_LIMIT_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job as its user described it. `submission`: the id of this request; sent again, it is the same job."""

    spec: dict[str, Any]
    folder: Path
    submission: str

    def pack(self) -> bytes:
        """Its code as an archive. Raises UsageError with one sentence."""
        return self._packed()[0].data

    def describe(self) -> dict[str, Any]:
        """What names its code and its environment, as `/v1/explain` takes it. Raises UsageError with one sentence."""
        code, lock = self._packed()
        return {
            "spec": self.spec,
            "code_sha256": code.sha256,
            "code_bytes": len(code.data),
            "lock": asdict(lock) if lock else None,
        }

    def _packed(self) -> tuple[Archive, Lock | None]:
        from bootstrap import PackError, lock_of, pack_directory

        try:
            packed = pack_directory(self.folder, limit_bytes=CODE_LIMIT_BYTES)
            # Nodes would find out, and cost money until then.
            return packed, lock_of(packed, str(self.spec.get("environment", "image")))
        except PackError as error:
            raise UsageError(str(error)) from error


def prepare(what: Sequence[str], options: Mapping[str, Any]) -> Prepared:
    """Read and merge. Raises UsageError with one sentence."""
    if len(what) == 1 and what[0].endswith((".yaml", ".yml")):
        base = Path(what[0]).parent
        spec = _read(Path(what[0]))
    else:
        base = Path()
        spec = {"run": shlex.join(what)}
    _merge(spec, options)
    _pin(spec)
    folder = Path(options["code"]) if options["code"] else base / str(spec.get("code", "."))
    _check_script(spec, folder)
    return Prepared(spec, folder, uuid.uuid4().hex)


def _read(path: Path) -> dict[str, Any]:
    import yaml

    try:
        parsed = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read the job file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(parsed, dict):
        raise UsageError(f"{path}: a job file is a mapping of keys, such as `name: my-job`; this one is not")
    return parsed


def _merge(spec: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Options win over the job file."""
    if options["name"]:
        spec["name"] = options["name"]
    numbers = {"desired": options["nodes"], "min": options["min_nodes"], "max": options["max_nodes"]}
    numbers |= {"spares": options["spares"]}
    given = {key: value for key, value in numbers.items() if value is not None}
    if given or "nodes" not in spec:
        spec["nodes"] = _nodes(spec.get("nodes"), given)
    for key, section in (("gpu", "resources"), ("gpus_per_node", "resources"), ("cloud", "placement")):
        if options[key] is not None:
            spec[section] = {**_section(spec, section), key: options[key]}
    for key in ("market", "setup"):
        if options[key] is not None:
            spec[key] = options[key]
    if options["env"]:
        spec["env"] = {**_section(spec, "env"), **_env(options["env"])}


def _pin(spec: dict[str, Any]) -> None:
    """A container image by its digest: all nodes run the same, whatever its tag stands for tomorrow."""
    from bootstrap.container.image import REGISTRY_PASSWORD, REGISTRY_USER, SCHEME, image_of
    from supervisor.cli.registry import pinned

    try:
        image = image_of(str(spec.get("environment", "")))
    except ValueError:
        return  # the daemon says what is wrong with it
    if image is not None:
        env = {**os.environ, **_section(spec, "env")}
        found = pinned(image, str(env.get(REGISTRY_USER, "")), str(env.get(REGISTRY_PASSWORD, "")))
        spec["environment"] = f"{SCHEME}{found}"


def _section(spec: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = spec.get(key, {})
    if not isinstance(value, dict):
        raise UsageError(f"the job file: `{key}` is {value!r}; a mapping is needed")
    return value


def _nodes(present: Any, given: dict[str, int]) -> dict[str, int]:
    if isinstance(present, int):
        present = {"min": present, "desired": present, "max": present}
    merged = {**(present or {}), **given}
    if "min" not in merged:
        merged["min"] = merged.get("desired", 1)
    return merged


def _env(pairs: Sequence[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise UsageError(f"--env {pair}: NAME=VALUE is needed")
    return dict(pair.split("=", 1) for pair in pairs)


def _check_script(spec: Mapping[str, Any], folder: Path) -> None:
    """The first word of `run` is the script; one that is missing would fail on every node, minutes later."""
    if not folder.is_dir():
        raise UsageError(f"the code folder {folder} does not exist; `code` (or --code) names the folder to ship")
    run = spec.get("run")
    if spec.get("kind") == "data":
        return  # a line for bash
    try:
        words = shlex.split(run) if isinstance(run, str) else []
    except ValueError:
        return  # the daemon says what is wrong with it
    if not words or words[0].startswith("-"):
        return
    if not (folder / words[0]).is_file():
        raise UsageError(f"the script {words[0]} is not in {folder.absolute()}; `run` names it relative to `code`")
