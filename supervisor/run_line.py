"""Reads `run`: a script, or a module, and its arguments. Pure, and light: command lines load it.

It is no shell line: nothing would expand its variables, and what a shell does with `>`, `&&` or a second line would
become arguments of the script, silently, on machines that cost money. Each of those is refused, and so is a program
that starts workers itself.
"""

from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath

# What people write before a script out of habit; the launcher is started anyway, so it is dropped.
INTERPRETERS = ("python", "python3", "torchrun")
_BY_SPOTSUP = "spotsup starts the workers itself, one for each GPU of each node"
_LAUNCHERS = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate": "accelerate",
    "accelerate.commands.launch": "accelerate",
    "accelerate.commands.accelerate_cli": "accelerate",
    "deepspeed": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
    "composer": "composer",
    "horovodrun": "horovodrun",
    "mpirun": "mpirun",
    "mpiexec": "mpiexec",
    "srun": "srun",
    "sbatch": "sbatch",
    "ray": "ray",
    "jupyter": "jupyter",
}
_RUNNERS = ("uv", "poetry", "pipenv", "conda", "mamba", "micromamba", "pixi", "hatch")
_SHELLS = ("bash", "sh", "zsh", "dash", "source", ".", "exec", "env", "nohup", "time", "sudo", "nice", "numactl")
_COMMANDS = ("export", "cd", "set", "if", "for", "while", "echo", "mkdir", "cp", "pip", "pip3", "apt-get", "wget")
_SETUP = "commands that prepare a node belong into `setup`, variables into `env`, arguments into the script"
# Outside of quotes; a variable and a backtick also within double quotes.
_OPERATORS = {
    "|": "a pipe",
    ";": "a second command",
    "&": "another command",
    "<": "a redirection",
    ">": "a redirection",
}
_VARIABLE = re.compile(r"\$(\w+|\{[^}]*\}?|\([^)]*\)?|[?$@*#!-])|`[^`]*`?")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def arguments_of(run: str) -> tuple[str, ...]:
    """Return the script and its arguments, or "-m", a module and its arguments. Raises ValueError with one sentence."""
    if found := _shell_syntax(run.strip()):
        raise ValueError(f"{found}, but `run` is no shell line: {_SETUP}; single quotes keep a text as it is")
    arguments = shlex.split(run.strip().replace("\\\n", " "))
    if not arguments:
        return ()
    if arguments[:2] == ["accelerate", "launch"] and len(arguments) > 2 and not arguments[2].startswith("-"):
        arguments = arguments[2:]
    elif arguments[0] in INTERPRETERS and len(arguments) > 1:
        if arguments[1] == "-u" and len(arguments) > 2:  # as all workers are
            del arguments[1]
        if arguments[1].startswith("-") and arguments[1] != "-m":
            raise ValueError(
                f"it begins with {' '.join(arguments[:2])!r}: leave out {arguments[0]} and its options, and begin "
                f"with the script; {_BY_SPOTSUP}"
            )
        arguments = arguments[1:]
    if problem := _problem_of(arguments):
        raise ValueError(problem)
    return tuple(arguments)


def _shell_syntax(run: str) -> str:
    """Return what a shell would do with a part of it, "" where nothing. `run`: without blanks around it."""
    quote, at, argument_begins = "", 0, True
    while at < len(run):
        char = run[at]
        if char == "\\" and quote != "'":
            at, argument_begins = at + 2, False
            continue
        if quote != "'" and (variable := _VARIABLE.match(run, at)):
            return f"it has {variable[0]}, which a shell would replace"
        if char in {"'", '"'} and quote in {"", char}:
            quote = "" if quote else char
        elif not quote and (found := _unquoted(run, at, argument_begins=argument_begins)):
            return found
        at, argument_begins = at + 1, not quote and char.isspace()
    return ""


def _unquoted(run: str, at: int, *, argument_begins: bool) -> str:
    char = run[at]
    if char == "\n":
        return "it has several lines (end a line with \\ to go on in the next)"
    if char in _OPERATORS:
        return f"it has {char}, {_OPERATORS[char]} to a shell"
    if char == "#" and argument_begins:
        return "it has #, which begins a comment in a shell"
    if char == "~" and argument_begins and run[at + 1 : at + 2] in {"", "/", " "}:
        return "it has ~, which a shell would replace by a home folder"
    if char == "*":
        return "it has *, which a shell would replace by names of files"
    return ""


def _problem_of(arguments: list[str]) -> str:
    is_module = arguments[0] == "-m"
    program = arguments[1] if is_module and len(arguments) > 1 else arguments[0]
    name, suffix = (program, "") if is_module else (PurePosixPath(program).name, PurePosixPath(program).suffix)
    if launcher := _LAUNCHERS.get(name):
        return f"it begins with {launcher}: begin with the script, without {launcher} and its options; {_BY_SPOTSUP}"
    if is_module or suffix == ".py":
        return _place_problem(program) if not is_module else ""
    if re.fullmatch(r"python[\d.]+", name):
        return f"it begins with {name}: begin with the script; `environment` says which interpreter a job has"
    if name in _RUNNERS:
        return f"it begins with {name}: begin with the script; `environment` says what it runs in (docs/nodes.md)"
    if name in _SHELLS or suffix in {".sh", ".bash", ".sbatch", ".slurm"}:
        return f"it begins with {program}, a shell's: begin with the Python script that it starts; {_SETUP}"
    if name in _COMMANDS or _ASSIGNMENT.match(program):
        return f"it begins with {program}, a command of a shell: begin with the Python script; {_SETUP}"
    if suffix == ".ipynb":
        return f"it begins with {program}, a notebook: write a script (jupyter nbconvert --to script {program})"
    return _place_problem(program)


def _place_problem(program: str) -> str:
    if program.startswith("/"):
        return f"{program} is an absolute path: a script is named relative to `code`, which is copied to every node"
    return ""
