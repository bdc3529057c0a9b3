"""The words of the code: the docstring of a function begins with a verb, and a retired word names nothing any more."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
PRODUCT = ("supervisor", "simulator", "provisioners", "bootstrap", "client", "tools")
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

Function = ast.FunctionDef | ast.AsyncFunctionDef


def trees(folder: str) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((REPO / folder).rglob("*.py")):
        yield str(path.relative_to(REPO)), ast.parse(path.read_text())


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
