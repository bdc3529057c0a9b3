"""From a job file and options to what is submitted.

Only what needs the user's files is checked here; the daemon checks the rest, before the code is packed.
"""

from __future__ import annotations

import os
import shlex
import sys
import uuid
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.cli.job_options import merge
from supervisor.errors import UsageError
from supervisor.job_keys import section
from supervisor.run_line import arguments_of

if TYPE_CHECKING:
    from spotsup.archive import Archive

    from bootstrap.environment.lock import Lock

CODE_LIMIT_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job that can be submitted."""

    spec: dict[str, Any] = field(repr=False)
    folder: Path  # its code
    submission: str  # the id of this request; if it is repeated, it still means the same job

    def pack(self) -> Archive:
        """Return the code as an archive. Raises UsageError with one sentence."""
        return self._packed()[0]

    def describe(self) -> dict[str, Any]:
        """Return the body of `/v1/explain`: the code's hash and size instead of the code. Raises UsageError."""
        code, lock = self._packed()
        return {
            "spec": self.spec,
            "code_sha256": code.sha256,
            "code_bytes": len(code.data),
            "lock": asdict(lock) if lock else None,
        }

    def _packed(self) -> tuple[Archive, Lock | None]:
        from spotsup.archive import pack_directory

        environment = str(self.spec.get("environment", "image"))
        packed = pack_directory(self.folder, limit_bytes=CODE_LIMIT_BYTES)
        if environment == "image":
            return packed, None
        from bootstrap import lock_of

        # A missing lock file would only show on the nodes, which cost money by then.
        return packed, lock_of(packed, environment, torch=self.spec.get("kind") != "data")


def prepare(what: Sequence[str], options: Mapping[str, Any]) -> Prepared:
    """Read the job file, if `what` names one, and merge the options. Raises UsageError with one sentence."""
    if what[0].endswith((".yaml", ".yml")):
        base = Path(what[0]).parent
        spec = read_job_file(Path(what[0]))
        _add_arguments(spec, what[1:])
    else:
        base = Path()
        spec = {"run": shlex.join(what)}
    merge(spec, options)
    _pin(spec)
    folder = Path(options["code"]) if options.get("code") else base / str(spec.get("code", "."))
    _check_script(spec, folder)
    return Prepared(spec, folder, uuid.uuid4().hex)


def read_job_file(path: Path) -> dict[str, Any]:
    """Return what a job file says. Raises UsageError with one sentence."""
    from supervisor.job_text import read_yaml

    try:
        parsed = read_yaml(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read the job file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not YAML: {error}") from error
    except ValueError as error:
        raise UsageError(f"{path} {error}") from error
    if not isinstance(parsed, dict):
        raise UsageError(f"{path}: a job file is a mapping of keys, such as `name: my-job`; this one is not")
    return parsed


def _add_arguments(spec: dict[str, Any], arguments: Sequence[str]) -> None:
    """Arguments on the command line follow those of `run`. Raises UsageError where there is none."""
    if not arguments:
        return
    if not isinstance(spec.get("run"), str):
        raise UsageError(f"the job file has no `run` that {shlex.join(arguments)} could be added to")
    spec["run"] = f"{spec['run'].strip()} {shlex.join(arguments)}"


def _pin(spec: dict[str, Any]) -> None:
    """Replace a container image's tag by its digest, so that all nodes run the same image, also tomorrow."""
    from bootstrap.container.image import REGISTRY_PASSWORD, REGISTRY_USER, SCHEME, image_of

    try:
        image = image_of(str(spec.get("environment", "")))
    except ValueError:
        return  # the daemon reports the error
    if image is not None:
        from supervisor.cli.registry import pinned

        env = {**os.environ, **section(spec, "env")}
        found = pinned(image, str(env.get(REGISTRY_USER, "")), str(env.get(REGISTRY_PASSWORD, "")))
        spec["environment"] = f"{SCHEME}{found}"


def _check_script(spec: Mapping[str, Any], folder: Path) -> None:
    """Raise UsageError if the script that `run` names is missing, or no Python: it would fail on every node, minutes
    later."""
    if not folder.is_dir():
        raise UsageError(f"the code folder {folder} does not exist; `code` (or --code) names the folder to ship")
    run = spec.get("run")
    if spec.get("kind") == "data":
        return  # `run` is a line for bash
    try:
        arguments = arguments_of(run) if isinstance(run, str) else ()
    except ValueError:
        return  # the daemon reports the error
    if arguments[:1] == ("-m",) and len(arguments) > 1:
        module = folder.joinpath(*arguments[1].split("."))
        for script in (module.with_suffix(".py"), module / "__main__.py"):
            if script.is_file():
                _compile(script)
        return  # the environment may have it
    if not arguments or arguments[0].startswith("-"):
        return
    script = Path(os.path.normpath(folder.absolute() / arguments[0]))
    if not script.is_file() or not script.is_relative_to(os.path.normpath(folder.absolute())):
        raise UsageError(f"the script {arguments[0]} is not in {folder.absolute()}; `run` names it relative to `code`")
    if script.suffix == ".py":
        _compile(script)


def _compile(script: Path) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(script.read_bytes(), str(script), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        where = f"{script}, line {error.lineno}" if isinstance(error, SyntaxError) else str(script)
        what = error.msg if isinstance(error, SyntaxError) else str(error)
        version = ".".join(map(str, sys.version_info[:2]))
        raise UsageError(f"{where}: {what}; Python {version} cannot run it") from error
    except OSError as error:
        raise UsageError(f"cannot read the script {script}: {error.strerror}") from error
