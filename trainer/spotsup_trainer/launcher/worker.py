"""Turns a forked process into one of the user's workers: it runs a program as a new interpreter would."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from spotsup_trainer import snapshot_files
from spotsup_trainer.launcher import examine
from spotsup_trainer.launcher.interpreter import run_program
from spotsup_trainer.launcher.parent_death import die_with_parent, set_process_name
from spotsup_trainer.moments import connect


@dataclass(frozen=True)
class WorkerRequest:
    """A worker to start."""

    # script, module: `argv[0]` is run in a process that has torch imported already. exec: `argv` is a command line.
    kind: Literal["script", "module", "exec"]
    argv: tuple[str, ...]
    # Its whole environment.
    env: Mapping[str, str] = field(repr=False)
    local_rank: int
    # Files to write to; "" for the launcher's own streams.
    stdout: str = ""
    stderr: str = ""
    # A torch.numa affinity mode, to bind to the CPUs of GPU `local_rank`; "" for none.
    numa: str = ""
    # Where a worker of this process writes its stacks when asked; "" for nowhere.
    stacks: str = ""
    # A file to create once the program of a worker of this process has run to its end; "" for none.
    over: str = ""


def run(request: WorkerRequest, parent_pid: int) -> NoReturn:
    """Become the worker, in a forked child of `parent_pid`. Ends by SystemExit, or by exec."""
    os.setpgid(0, 0)
    die_with_parent(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_DFL if request.kind == "exec" else signal.default_int_handler)
    threads_before = os.environ.get("OMP_NUM_THREADS")
    os.environ.clear()
    os.environ.update(request.env)
    _redirect(request.stdout, 1)
    _redirect(request.stderr, 2)
    if request.kind == "exec":
        _execute(request)
    set_process_name(Path(request.argv[0]).name)
    _be_unbuffered()
    if os.environ.get("OMP_NUM_THREADS") != threads_before:
        _set_threads()
    _reseed_numpy()
    _keep_process_groups()
    _time_process_groups()
    if request.stacks:
        with contextlib.suppress(OSError):  # a full disk must not keep it from training
            examine.register(request.stacks)
    raise SystemExit(_run_program(request))


def _redirect(path: str, descriptor: int) -> None:
    if path:
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(target, descriptor)
        os.close(target)


def _execute(request: WorkerRequest) -> NoReturn:
    snapshot_files.set_inheritable(request.env, inheritable=True)
    try:
        os.execvpe(request.argv[0], list(request.argv), dict(request.env))  # noqa: S606 - the user's own program
    except OSError as error:
        raise SystemExit(f"spotsup: cannot run {request.argv[0]}: {error.strerror}") from error


def _be_unbuffered() -> None:
    """As `python -u`: a killed worker's output is in the log."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True, write_through=True)


def _set_threads() -> None:
    """OpenMP has read its variable already, when the parent imported torch."""
    import torch

    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted) > 0:
        torch.set_num_threads(int(wanted))


def _reseed_numpy() -> None:
    """Reseed: a forked process would repeat its siblings' numpy random numbers. Python reseeds its own generator after
    a fork, and torch's starts from the same seed in every process anyway."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _keep_process_groups() -> None:
    """Let no process group be destroyed before the process ends, after `destroy_process_group` neither.

    Its destructor holds the GIL and joins gloo's threads; one of them may wait for the GIL, to release the Python
    object that `torch.autograd.graph._engine_run_backward` attaches to each backward pass. Where a DDP model has the
    last reference, the worker then hangs as the model goes: mostly at the end of a script's main().
    """
    from torch.distributed import distributed_c10d

    register = distributed_c10d._register_process_group  # noqa: SLF001 - torch calls it for each new group

    def register_and_keep(name: str, group: object) -> None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))  # not a list: it would go as the interpreter ends
        register(name, group)

    distributed_c10d._register_process_group = register_and_keep  # noqa: SLF001


def _time_process_groups() -> None:
    """Measure for how long process groups are being made: by torch's own functions below `init_process_group` and
    `new_group`, which the program may have imported under any name."""
    from torch.distributed import distributed_c10d

    rendezvous = getattr(distributed_c10d, "rendezvous", None)
    new_group = getattr(distributed_c10d, "_new_process_group_helper", None)
    if rendezvous is None or new_group is None:
        return  # a torch that this was not written for: the time remains unknown

    def timed_rendezvous(*args: Any, **options: Any) -> Iterator[Any]:
        stores = rendezvous(*args, **options)
        with connect.counted():
            store = next(stores)
        yield store
        yield from stores

    def timed_new_group(*args: Any, **options: Any) -> Any:
        with connect.counted():
            return new_group(*args, **options)

    distributed_c10d.rendezvous = timed_rendezvous
    distributed_c10d._new_process_group_helper = timed_new_group  # noqa: SLF001
    connect.begin()


def _run_program(request: WorkerRequest) -> int:
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    get_error_handler().initialize()
    if request.numa:
        _bind_to_numa_node(request)
    try:
        return run_program(request.argv, is_module=request.kind == "module", on_error=_leave)
    finally:
        if request.over:
            with contextlib.suppress(OSError):
                Path(request.over).touch()


def _leave(error: BaseException, trace: str) -> None:
    """Write what torchrun's agent reads after a worker's end, in the form of torch's ErrorHandler. That one itself asks
    for the traceback as it was caught, which before Python 3.11 still has our frames."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        details = {"py_callstack": trace, "timestamp": str(int(time.time()))}
        message = f"{type(error).__name__}: {error}"
        Path(path).write_text(json.dumps({"message": {"message": message, "extraInfo": details}}))


def _bind_to_numa_node(request: WorkerRequest) -> None:
    from torch.numa import binding

    # As torchrun does in this process, which 2.9 cannot. Private since 2.11.
    wrap = getattr(binding, "_maybe_wrap_with_numa_binding", None) or getattr(
        binding, "maybe_wrap_with_numa_binding", None
    )
    if wrap is None:
        sys.stderr.write("spotsup: --numa-binding is ignored: it needs torch 2.10 or newer\n")
        return
    options = binding.NumaOptions(binding.AffinityMode(request.numa), should_fall_back_if_binding_fails=True)
    wrap(lambda: None, gpu_index=request.local_rank, numa_options=options)()
