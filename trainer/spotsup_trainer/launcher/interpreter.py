"""Runs a program in this process as `python PROGRAM` would: in a real module `__main__`, which stays to the very end.

`runpy.run_path` takes its module away when the program's last line has run: threads, `atexit` functions and
asynchronous saves cannot pickle the program's classes any more. Processes that `multiprocessing` spawns send objects of
those classes by the name `__mp_main__`, which has to be the same module. So this does what CPython's `Modules/main.c`
does.
"""

from __future__ import annotations

import builtins
import os
import pkgutil
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

# What this process itself was started as. It goes on below the program.
_launched_as: list[ModuleType] = []


def run_program(argv: Sequence[str], *, is_module: bool, on_error: Callable[[BaseException, str], None]) -> int:
    """Run the script, or with `is_module` the module, that `argv[0]` names. Return its exit status: 0, or 1 after an
    error. What it raises with `sys.exit`, and by Ctrl-C, is raised.

    `on_error`: called with the exception and its traceback as text, before `sys.excepthook`.
    """
    sys.argv = ["-m", *argv[1:]] if is_module else list(argv)
    if hasattr(sys, "orig_argv"):  # since Python 3.10
        sys.orig_argv = [sys.executable, *(["-m"] if is_module else []), *argv]
    _become_main()
    try:
        if is_module:
            _add_to_path(str(Path.cwd()))
            runpy._run_module_as_main(argv[0])  # type: ignore[attr-defined]  # noqa: SLF001 - as the interpreter does
        else:
            _run_script(argv[0])
    except (SystemExit, KeyboardInterrupt):
        raise  # the interpreter does the rest
    except BaseException as error:  # noqa: BLE001 - an error of the user's program ends here, as in the interpreter
        _report(error, on_error)
        return 1
    return 0


def _become_main() -> None:
    main, before = ModuleType("__main__"), sys.modules["__main__"]
    vars(main)["__builtins__"] = builtins
    if "__annotations__" in vars(before):  # until Python 3.13
        vars(main).update(__annotations__={})
    _launched_as.append(before)
    sys.modules["__main__"] = main
    if "__mp_main__" in sys.modules:  # as `multiprocessing` does when it is imported
        sys.modules["__mp_main__"] = main


def _add_to_path(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", False):  # PYTHONSAFEPATH, since Python 3.11
        sys.path.insert(0, folder)


def _run_script(program: str) -> None:
    path = os.path.join(os.getcwd(), program)  # noqa: PTH109, PTH118 - "." and ".." stay, as in the interpreter
    if pkgutil.get_importer(path) is not None:  # a folder, or an archive, with a __main__.py
        sys.path.insert(0, path)
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]  # noqa: SLF001
        return
    _add_to_path(str(Path(program).resolve().parent))
    main = sys.modules["__main__"]
    if path.endswith(".pyc"):
        main.__loader__ = SourcelessFileLoader("__main__", path)
        code: Any = main.__loader__.get_code("__main__")
    else:
        main.__loader__ = SourceFileLoader("__main__", path)
        code = compile(main.__loader__.get_data(path), path, "exec", dont_inherit=True)
    vars(main).update(__file__=path, __cached__=None)
    exec(code, vars(main))  # noqa: S102 - the user's own program


def _report(error: BaseException, on_error: Callable[[BaseException, str], None]) -> None:
    """Report an error as the interpreter does, with the program's own frames only."""
    trace = _frames_of_program(error.__traceback__)
    error.__traceback__ = trace
    on_error(error, "".join(traceback.format_exception(type(error), error, trace)))
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        sys.excepthook(type(error), error, trace)
    except BaseException as of_hook:  # noqa: BLE001 - the program's own hook
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(of_hook), of_hook, of_hook.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, trace)


def _frames_of_program(trace: TracebackType | None) -> TracebackType | None:
    frame = trace
    while frame is not None and frame.tb_frame.f_code.co_filename == __file__:
        frame = frame.tb_next
    return frame
