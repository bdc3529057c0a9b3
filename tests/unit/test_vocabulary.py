"""The words of the code: the docstring of a function begins with a verb, and a retired word names nothing any more."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
PRODUCT = ("supervisor", "simulator", "provisioners", "bootstrap", "client", "tools", "trainer")
NO_VERB = re.compile(r"(What|Whether|How|Of|By|All|Those|That|It|Why|The|An?|One|Raises|Prints|Returns|Reads|Writes)\b")
USER_TEXT = {
    "command",
    "group",
    "get",
    "post",
    "put",
    "patch",
    "delete",
}  # of click and FastAPI: the docstring is shown

# What names nothing any more, and what does now.
RETIRED = {
    r"told|_told": "what it is: a record, a reply, the sentence that is shown",
    r"words?|words_\w+": "message, arguments, tokens, text",
    r"nobody|strangers?": "None, unjournaled nodes",
    r"mend\w*": "fix, remedy",
    r"most_\w+|longest_step_s|least": "max_, min_",
    r"(MOST|LONGEST|LEAST)_\w+": "MAX_, MIN_",
    r"sweep_(leftovers|orphans|users)|swept": "reap, prune; a sweep is of hyper-parameters",
    r"best_target|target_of_move": "destination; targets are Prometheus'",
    r"(Node|Sim)Accounts?|drive_accounts": "billing, auth; an account is a cloud's",
    r"deaf\w*|leash|farewell|custody|hands_off|take_charge|amnesty\w*|asleep|unsay": "the field's word",
    r"Passage|Calm|Seat|Soft|AgentWord": "Transition, steady, RendezvousClient, VolatileState, AgentStatus",
}
ALLOWED = {"most_common"}  # collections.Counter's

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def trees(folder: str) -> tuple[tuple[str, ast.Module], ...]:
    paths = sorted((REPO / folder).rglob("*.py"))
    return tuple((str(path.relative_to(REPO)), ast.parse(path.read_text())) for path in paths)


def is_user_text(function: Function) -> bool:
    called = [each.func if isinstance(each, ast.Call) else each for each in function.decorator_list]
    return any(isinstance(each, ast.Attribute) and each.attr in USER_TEXT for each in called)


def without_verb(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_user_text(node):
            text = ast.get_docstring(node) or ""
            if NO_VERB.match(text):
                yield f"{node.lineno} {node.name}: {text[:60]}"


@pytest.mark.parametrize("folder", PRODUCT)
def test_the_docstring_of_a_function_begins_with_a_verb(folder: str) -> None:
    assert [f"{path}:{found}" for path, tree in trees(folder) for found in without_verb(tree)] == []


def test_a_docstring_without_a_verb_is_found_but_for_the_text_of_commands() -> None:
    source = '''
def price() -> float:
    """What a machine costs."""

@app.get("/v1/jobs")
def jobs() -> None:
    """All jobs."""

class Job:
    """A job."""

    def is_over(self) -> bool:
        """True if it has ended."""

    async def stop(self) -> None:
        """Raises if it cannot."""
'''
    assert [each.split()[1] for each in without_verb(ast.parse(source))] == ["price:", "stop:"]


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Attribute(attr=name) | ast.Name(id=name):
                yield node.lineno, name


@cache
def standard_of(name: str) -> str | None:
    """What to say instead of a retired word."""
    found = (standard for word, standard in RETIRED.items() if re.fullmatch(word, name))
    return None if name in ALLOWED else next(found, None)


def retired(tree: ast.Module) -> Iterator[str]:
    for line, name in names(tree):
        if standard := standard_of(name):
            yield f"{line} {name}: say {standard}"


@pytest.mark.parametrize("folder", PRODUCT)
def test_no_name_is_a_retired_word(folder: str) -> None:
    assert [f"{path}:{found}" for path, tree in trees(folder) for found in retired(tree)] == []


def test_a_retired_word_is_found_as_a_class_a_function_an_argument_a_field_and_a_variable() -> None:
    source = "class Seat: ...\ndef mend(least): ...\nself.told = words = Counter().most_common()"
    found = {each.split()[1] for each in retired(ast.parse(source))}
    assert found == {"Seat:", "mend:", "least:", "told:", "words:"}
