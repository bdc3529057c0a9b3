"""Prints what a program can find out about the interpreter that runs it, a line per fact; and then how it ends."""

import asyncio
import atexit
import concurrent.futures
import faulthandler
import gc
import inspect
import io
import locale
import logging
import multiprocessing
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import typing
import warnings
from dataclasses import dataclass
from pathlib import Path

names_at_start = sorted(set(globals()) & {name for name in globals() if name.startswith("__")})
here = sys.modules["__main__"]


@dataclass
class Sample:
    """A class of the program's own."""

    value: int = 0
    other: "Sample | None" = None


def make(value: int) -> Sample:
    return Sample(value)


def square(value: int) -> int:
    return value * value


def fact(name: str, value: object) -> None:
    print(f"{name}: {value}", flush=True)


def tried(name: str, function: typing.Callable[[], object]) -> None:
    try:
        fact(name, function())
    except BaseException as error:  # noqa: BLE001 - it is what is asked for
        fact(name, repr(error))


def pool(method: str, function: typing.Callable[[int], object]) -> object:
    with multiprocessing.get_context(method).Pool(1) as workers:
        return workers.map_async(function, [2]).get(30)


def executor(method: str) -> object:
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as workers:
        return workers.submit(make, 3).result(30)


def child(method: str) -> object:
    context: typing.Any = multiprocessing.get_context(method)
    process = context.Process(target=square, args=(1,), name="child")
    process.start()
    process.join(30)
    return process.exitcode


def pickled() -> object:
    return pickle.loads(pickle.dumps(Sample(1)))  # noqa: S301


def warned() -> str:
    kept, sys.stderr = sys.stderr, io.StringIO()
    try:
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        warnings.warn("pending", PendingDeprecationWarning, stacklevel=1)
        return sys.stderr.getvalue()
    finally:
        sys.stderr = kept


def run() -> None:  # noqa: PLR0915 - a line per fact
    module = sys.modules["__main__"]
    fact("__file__", __file__)
    fact("listing beside __file__", "interpreter_facts.py" in os.listdir(os.path.dirname(__file__)))  # noqa: PTH120, PTH208
    fact("__name__", __name__)
    fact("__package__", repr(__package__))
    fact("__spec__", getattr(__spec__, "name", None))
    loader: typing.Any = globals()["__loader__"]
    fact("__loader__", type(loader).__name__)
    fact("__loader__ finds the text", loader.get_data(__file__)[:9])
    fact("__cached__", globals().get("__cached__", "none"))
    fact("__doc__", __doc__)
    fact("__builtins__", type(__builtins__).__name__)
    fact("special names", names_at_start)
    fact("the module is __main__", vars(module) is globals() and module is here)
    fact("the module is __mp_main__", sys.modules.get("__mp_main__") is module)
    fact("name of a class", (Sample.__module__, Sample.__qualname__))
    fact("hints of a class", typing.get_type_hints(Sample))
    tried("text of a class", lambda: inspect.getsource(Sample))
    fact("file of a class", inspect.getfile(Sample))
    fact("argv", sys.argv)
    fact("orig_argv", [word for word in getattr(sys, "orig_argv", ()) if word not in {"-u", "-X", "faulthandler"}])
    fact("executable", sys.executable)
    fact("prefix", (sys.prefix, sys.base_prefix))
    fact("path", sys.path)
    fact("flags", str(sys.flags).replace("unbuffered=1", "unbuffered=0"))
    fact("write bytecode", sys.dont_write_bytecode)
    fact("hooks", (sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__))
    fact("hook of threads", threading.excepthook.__module__)
    fact("hook of what cannot be raised", sys.unraisablehook is sys.__unraisablehook__)
    fact("trace and profile", (sys.gettrace(), sys.getprofile()))
    fact("recursion", sys.getrecursionlimit())
    fact("switch interval", sys.getswitchinterval())
    fact("streams", [(each.encoding, each.errors) for each in (sys.stdin, sys.stdout, sys.stderr)])
    fact("stdin", Path("/proc/self/fd/0").readlink())
    fact("locale", locale.setlocale(locale.LC_ALL))
    fact("folder", Path.cwd())
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE", "SIGCHLD", "SIGUSR2"):
        fact(name, signal.getsignal(getattr(signal, name)))
    fact("blocked signals", signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    fact("wakeup descriptor", signal.set_wakeup_fd(-1))
    fact("threads", [each.name for each in threading.enumerate()])
    fact("main thread", threading.main_thread().ident == threading.get_ident())
    fact("garbage collector", (gc.isenabled(), gc.get_threshold()))
    fact(
        "limits", [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
    )
    fact("niceness", os.nice(0))
    fact("umask", os.umask(0o22))
    fact("descriptors", sorted(str(Path(f"/proc/self/fd/{each}").readlink())[:5] for each in (0, 1, 2)))
    fact("processors", sorted(os.sched_getaffinity(0)))
    fact("root logger", (logging.getLogger().handlers, logging.getLogger().level))
    fact("fault handler", faulthandler.is_enabled())
    fact("warnings", warned())
    fact("environment", sorted(name for name in os.environ if name != "_"))
    fact("random numbers", len({random.random() for _ in range(3)}))
    fact("asyncio", asyncio.run(asyncio.sleep(0, "ran")))
    fact("a process", subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, check=True).stdout)
    fact("current process", multiprocessing.current_process().name)
    fact("parent process", multiprocessing.parent_process())
    fact("children", multiprocessing.active_children())
    tried("pickled", pickled)
    for method in ("fork", "spawn", "forkserver"):
        tried(f"objects from a pool by {method}", lambda method=method: pool(method, make))  # type: ignore[misc]
        tried(f"numbers from a pool by {method}", lambda method=method: pool(method, square))  # type: ignore[misc]
        tried(f"executor by {method}", lambda method=method: executor(method))  # type: ignore[misc]
        tried(f"process by {method}", lambda method=method: child(method))  # type: ignore[misc]


def after_the_last_line() -> None:
    while threading.main_thread().is_alive():
        time.sleep(0.01)
    tried("pickled by a thread after the last line", pickled)
    tried("the module is still there", lambda: sys.modules["__main__"] is here)


def hook(kind: type, error: BaseException, trace: object) -> None:
    print("hooked", kind.__name__, error, getattr(sys, "last_value", None) is error, file=sys.stderr)
    sys.__excepthook__(kind, error, trace)  # type: ignore[arg-type]


if __name__ == "__main__":
    how = sys.argv[-1]
    if how == "facts":
        run()
        atexit.register(lambda: tried("pickled at exit", pickled))
        threading.Thread(target=after_the_last_line).start()
    elif how == "raise":
        sys.excepthook = hook
        raise KeyError("how")
    elif how == "raise plainly":
        raise ValueError("plain")
    elif how == "exit 3":
        sys.exit(3)
    elif how == "exit text":
        sys.exit("a text")
    elif how == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(30)
    elif how == "broken hook":
        sys.excepthook = lambda *_: 1 / 0
        raise KeyError("how")
