"""`python -m spotsup_trainer.launcher <torchrun's own command line>`: torchrun for spot machines.

Exit code 0: the job ended well, or this node left in order; 1: it failed; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from spotsup_trainer import snapshot_files
from spotsup_trainer.launcher.compiled import cache_folders
from spotsup_trainer.launcher.parent_death import die_with_parent
from spotsup_trainer.launcher.preparation import Preparation
from spotsup_trainer.launcher.run_dir import Outcome, RunDir
from spotsup_trainer.launcher.supervision import Limits
from spotsup_trainer.rendezvous.abandonable_call import call_while
from spotsup_trainer.timing import seconds_in

if TYPE_CHECKING:
    from spotsup_trainer.launcher.forkserver import WorkerServer

# What a program with a Session imports sooner or later: a forked worker has it already. A second of CPU time.
_SESSION = ("torch.distributed.checkpoint", "spotsup_trainer.session", "spotsup_trainer.session.checkpoint")

_MKDIR_TIMEOUT_S = 10.0

log = logging.getLogger("spotsup_trainer")


class UsageError(Exception):
    """The command line or the environment is wrong."""


def run() -> NoReturn:
    """Run the launcher, and end the process. A worker leaves this call by SystemExit."""
    # A seventh of what the imports cost would be looking for garbage. It is on again once workers are forked.
    gc.disable()
    exit_code = main()
    # Everything is closed. With torch, the interpreter's own exit takes over a second, too long on a preempted machine.
    logging.shutdown()
    sys.stdout.flush()
    os._exit(exit_code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one node of a job to its end. Workers are forked in here, and leave by SystemExit."""
    agent_pid = os.environ.pop("SPOTSUP_AGENT_PID", "")
    if agent_pid:
        die_with_parent(int(agent_pid))
    _log_to_stderr()
    # Only now: importing torch takes seconds, and an agent that is killed meanwhile must not leave us behind.
    from spotsup_trainer.launcher import forkserver
    from spotsup_trainer.launcher.prepare import PreloadError, start_prepared, wanted_imports
    from spotsup_trainer.launcher.program_imports import uses_session

    try:
        args = parse_command_line(sys.argv[1:] if argv is None else argv)
        _check(args, os.environ)
        warm = _is_warm(args, os.environ)
        program = args.training_script
        if warm and uses_session(program, Path.cwd(), is_module=args.module):
            for module in _SESSION:
                importlib.import_module(module)
        imports = wanted_imports(program, is_module=args.module, environ=os.environ) if warm else ()
    except (UsageError, PreloadError) as error:
        sys.stderr.write(f"spotsup: {error}\n")
        return 2
    # Inherited by all workers.
    wanted = os.environ.get("SPOTSUP_SNAPSHOTS", "1") != "0"
    os.environ[snapshot_files.VARIABLE] = snapshot_files.create(args.nproc_per_node) if wanted else ""
    os.environ.update(cache_folders(os.environ))
    # Before any code that starts threads or touches GPUs, and with no caller that would clean up in a worker.
    notes = Preparation(os.environ.get("SPOTSUP_RUN_DIR"))
    worker_argv = (program, *args.training_script_args)
    try:
        server, left_out = start_prepared(imports, worker_argv, notes.left_out(), notes.importing)
        notes.ended(left_out)
        return _launch(args, server, warm=warm)
    except forkserver.WorkerServerError as error:
        log.error("%s; restart this launcher", error)  # noqa: TRY400 - the message needs no traceback
        return 1


def parse_command_line(argv: Sequence[str]) -> Any:
    """Parse torchrun's options before the program; what follows the program is its own, whatever it looks like.

    torchrun itself looks at all words: `train.py --log x` is an ambiguous option of its own to it.
    """
    from torch.distributed import run as torchrun

    behind = _find_program(argv, torchrun.get_args_parser()) + 1
    args = torchrun.parse_args(list(argv[:behind]))
    args.training_script_args = list(argv[behind:])
    return args


def _find_program(argv: Sequence[str], parser: argparse.ArgumentParser) -> int:
    """Return the index of the first word that is neither an option nor an option's value; or of an unknown option."""
    known, at = parser._option_string_actions, 0  # noqa: SLF001 - argparse has no other table of its options
    while at < len(argv):
        if argv[at] == "--":
            return at + 1
        option, has_value, _ = argv[at].partition("=")
        matching = {known[name] for name in known if name.startswith(option)}  # options may be abbreviated
        action = known.get(option) or (matching.pop() if len(matching) == 1 else None)
        if not option.startswith("-") or action is None:
            return at
        at += 1 if has_value or action.nargs == 0 else 2
    return at


def _launch(args: Any, server: WorkerServer, *, warm: bool) -> int:
    with ExitStack() as stack:
        stack.callback(server.close)
        folder = os.environ.get("SPOTSUP_RUN_DIR") or stack.enter_context(
            tempfile.TemporaryDirectory(prefix="spotsup-")
        )
        run_dir = RunDir(Path(folder).absolute())
        for variable in ("SPOTSUP_CHECKPOINT_DIR", "SPOTSUP_OUTPUT_DIR"):
            if place := os.environ.get(variable):
                _make_dir(Path(place))
        try:
            outcome = _run(args, server, run_dir, warm=warm)
        except UsageError as error:
            sys.stderr.write(f"spotsup: {error}\n")
            return 2
        run_dir.write_outcome(outcome)
        log.info("%s: %s", outcome.outcome, outcome.message)
        return 1 if outcome.outcome == "failure" else 0


def _make_dir(path: Path) -> None:
    """Create a directory for the script. A disk that refuses, or hangs, must not stop training."""
    deadline = time.monotonic() + _MKDIR_TIMEOUT_S

    def make() -> bool:
        path.mkdir(parents=True, exist_ok=True)
        return True

    try:
        if not call_while(make, lambda: time.monotonic() < deadline):
            log.warning("the directory %s does not answer for %.0f s", path, _MKDIR_TIMEOUT_S)
    except OSError as error:
        log.warning("the checkpoint directory %s cannot be created: %s", path, error)


def _run(args: Any, server: WorkerServer, run_dir: RunDir, *, warm: bool) -> Outcome:
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.rendezvous.api import RendezvousError, RendezvousParameters

    from spotsup_trainer.launcher.elastic_agent import SpotsupElasticAgent
    from spotsup_trainer.launcher.program import Program, own_logs, python_of
    from spotsup_trainer.launcher.torch_versions import OF_WORKER_SPEC, SIGNALS, fields_of
    from spotsup_trainer.rendezvous.handler import handler_from

    args.log_dir = args.log_dir or own_logs(run_dir.path)
    try:
        config, _, _ = torchrun.config_from_args(args)
        handler = handler_from(
            RendezvousParameters(
                args.rdzv_backend,
                args.rdzv_endpoint,
                args.rdzv_id,
                config.min_nodes,
                config.max_nodes,
                local_addr=args.local_addr,
                **config.rdzv_configs,
            ),
            os.environ,
            app_failures=_allowed_failures(args, os.environ),
        )
    except (ValueError, AssertionError, RuntimeError, OSError) as error:
        raise UsageError(str(error)) from error
    numa = getattr(config, "numa_options", None)
    if numa and not warm:
        log.warning("--numa-binding is ignored: it needs warm workers (SPOTSUP_WARM=1)")
    program = Program(
        name=args.training_script,
        arguments=tuple(args.training_script_args),
        module=args.module,
        python="" if args.no_python else python_of(os.environ),
        warm=warm,
        numa=numa.affinity_mode.value if numa else "",
    )
    spec = WorkerSpec(
        role=config.role,
        local_world_size=config.nproc_per_node,
        rdzv_handler=handler,
        entrypoint=program.name,
        max_restarts=config.max_restarts,
        monitor_interval=config.monitor_interval,
        **fields_of(config, OF_WORKER_SPEC),
    )
    agent = SpotsupElasticAgent(
        spec,
        config.logs_specs,
        server,
        run_dir,
        program,
        limits=_limits(os.environ),
        log_line_prefix_template=config.log_line_prefix_template,
    )
    for name in getattr(config, "signals_to_handle", SIGNALS).split(","):
        signal.signal(signal.Signals[name.strip()], lambda *_: agent.leave())
    try:
        agent.run()
    except RendezvousError as error:
        return Outcome("failure", str(error))
    finally:
        handler.shutdown()
    return agent.outcome


def _check(args: Any, environ: Mapping[str, str]) -> None:
    if args.standalone or args.rdzv_backend != "spotsup":
        raise UsageError(f"--rdzv-backend is {args.rdzv_backend}; this launcher needs spotsup; for others use torchrun")
    script = args.training_script
    if not args.module and not args.no_python and not Path(script).exists():
        raise UsageError(f"{script} does not exist in {Path.cwd()}; name an existing script, or a module with -m")
    if args.module and args.no_python:
        raise UsageError("--module and --no-python exclude each other")
    _allowed_failures(args, environ)
    _limits(environ)


def _is_warm(args: Any, environ: Mapping[str, str]) -> bool:
    """Return whether workers are forked from this process: only programs for this same interpreter can be, and only
    those that would import the same modules by the same names."""
    own = environ.get("PYTHON_EXEC", sys.executable) == sys.executable
    if environ.get("SPOTSUP_WARM", "1") == "0" or not own or args.no_python:
        return False
    if shadowed := _shadowed(Path.cwd() if args.module else Path(args.training_script).resolve().parent):
        log.info("%s is beside the program, too: each worker imports torch for itself", shadowed)
    return not shadowed


def _shadowed(folder: Path) -> str:
    """Return the name of a module that is imported here, and that the interpreter would have taken from `folder`."""
    found = {each.parent.name for each in folder.glob("*/__init__.py")}
    found |= {each.name[: -len(suffix)] for suffix in all_suffixes() for each in folder.glob(f"*{suffix}")}
    for name in sorted(found & sys.modules.keys() - set(sys.builtin_module_names)):
        file = getattr(sys.modules[name], "__file__", None) or ""
        if not Path(file).resolve().is_relative_to(folder.resolve()):
            return name
    return ""


def _allowed_failures(args: Any, environ: Mapping[str, str]) -> int:
    """Return how many rounds may end by the program's own failure before the job has failed."""
    text = environ.get("SPOTSUP_APP_FAILURES") or str(args.max_restarts)
    if not text.isdigit():
        raise UsageError(f"SPOTSUP_APP_FAILURES is {text!r}; it must be a whole number, 0 or more")
    return int(text)


def _limits(environ: Mapping[str, str]) -> Limits:
    """Return the job's own limits. Raises UsageError."""
    hang = environ.get("SPOTSUP_HANG") or "alert"
    if hang not in {"alert", "restart"}:
        raise UsageError(f"SPOTSUP_HANG is {hang!r}; it must be alert or restart")
    try:
        finish_s, stop_s = seconds_in(environ, "SPOTSUP_FINISH_S"), seconds_in(environ, "SPOTSUP_STOP_S")
    except ValueError as error:
        raise UsageError(str(error)) from error
    return Limits(finish_s=finish_s or 120.0, stop_s=stop_s, restart_hung=hang == "restart")


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("[spotsup %(asctime)s] %(message)s", "%H:%M:%S"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
