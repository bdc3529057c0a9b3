"""Reads a release of Microsoft's SDK as text: the types of requests and answers, and the operations that have them.

There are two kinds of releases. Older ones describe a type's members in `_attribute_map` and `_validation`, with
objects taken apart; newer ones in fields (`rest_field`), as the API has them. Both make their requests in functions of
their own (`build_..._request`), and read the answers in the methods that people call.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

OPEN = frozenset({"VirtualMachineSizeTypes"})  # those of 2019; Microsoft.Compute/skus has the sizes of today
# The SDK's names of plain types, and ours.
_PLAIN: Mapping[str, str] = {
    **{name: name for name in ("str", "int", "float", "bool", "object")},
    **dict.fromkeys(("duration", "bytearray", "bytes", "datetime.timedelta"), "str"),
    "long": "int",
    **dict.fromkeys(("iso-8601", "datetime.datetime"), "datetime"),
    **dict.fromkeys(("Any", "JSON"), "object"),
}


@dataclass(slots=True)
class Written:
    """What goes into a file of types: members' types by type, which of them are required and which only answers have,
    and the values of enumerations."""

    types: dict[str, dict[str, str]] = field(default_factory=dict)
    required: dict[str, list[str]] = field(default_factory=dict)
    read_only: dict[str, list[str]] = field(default_factory=dict)
    enumerations: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, member: str, what: str, *, required: bool, read_only: bool = False) -> None:
        """Add a member of a type. An object that was taken apart is added once for each of its members."""
        known = member in self.types.setdefault(kind, {})
        self.types[kind][member] = what
        if required and member not in self.required.setdefault(kind, []):
            self.required[kind].append(member)
        only_answers = self.read_only.setdefault(kind, [])
        if read_only and not known:
            only_answers.append(member)
        elif not read_only and member in only_answers:
            only_answers.remove(member)


@dataclass(frozen=True, slots=True)
class _Member:
    path: str  # in the body, with dots
    what: str
    enumeration: str
    required: bool
    read_only: bool


def read(source: str, enumerations: str, wanted: Iterable[str]) -> Written:
    """Return the wanted types of a release's models. Pure."""
    classes = {each.name: each for each in ast.parse(source).body if isinstance(each, ast.ClassDef)}
    known = {each.name: each for each in ast.parse(enumerations).body if isinstance(each, ast.ClassDef)}
    written = Written()
    for kind in wanted:
        written.types[kind] = {}
        for each in _members(classes, known, kind):
            # A dot in a path is an object that the SDK has taken apart; an escaped one is a dot.
            *outer, member = (part.replace("\\.", ".") for part in re.split(r"(?<!\\)\.", each.path))
            flags = {"required": each.required, "read_only": each.read_only}
            where = kind
            for part in outer:
                written.add(where, part, f"{where}.{part}", **flags)
                where = f"{where}.{part}"
            if each.enumeration and each.enumeration not in OPEN:
                written.enumerations[each.enumeration] = sorted(_values(known[each.enumeration]))
                written.add(where, member, each.what.replace("str", each.enumeration), **flags)
            else:
                written.add(where, member, each.what, **flags)
    return written


def _members(classes: Mapping[str, ast.ClassDef], known: Mapping[str, ast.ClassDef], kind: str) -> Iterator[_Member]:
    made = classes[kind]
    fields = any(isinstance(each, ast.AnnAssign) and "rest_field(" in ast.unparse(each) for each in made.body)
    if fields or not _literal(made, "_attribute_map"):
        yield from _fields(classes, known, made)
    else:
        yield from _attributes(known, made)


def _attributes(known: Mapping[str, ast.ClassDef], made: ast.ClassDef) -> Iterator[_Member]:
    """Yield those of an older release. A class repeats what it inherits."""
    rules = _literal(made, "_validation")
    start = next(each for each in made.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
    hints = {each.arg: ast.unparse(each.annotation) for each in start.args.kwonlyargs if each.annotation is not None}
    # What is for output only has no argument: its enumeration is in the text alone.
    text = re.sub(r"\s+", " ", ast.get_docstring(made) or "")
    documented = dict(re.findall(r":vartype (\w+): (.*?)(?= :\w|$)", text))
    for name, described in _literal(made, "_attribute_map").items():
        rule, sort = rules.get(name, {}), str(described["type"])
        what = sort.replace(bare := sort.strip("[]{}"), _PLAIN.get(bare, bare))
        named = re.findall(r"models\.(\w+)", hints.get(name, "") or documented.get(name, ""))
        enumeration = next((each for each in named if bare == "str" and each in known), "")
        yield _Member(described["key"], what, enumeration, bool(rule.get("required")), bool(rule.get("readonly")))


def _fields(
    classes: Mapping[str, ast.ClassDef], known: Mapping[str, ast.ClassDef], made: ast.ClassDef
) -> Iterator[_Member]:
    """Yield those of a newer release, and of what a class inherits."""
    for base in made.bases:
        if isinstance(base, ast.Name) and base.id in classes:
            yield from _fields(classes, known, classes[base.id])
    for each in made.body:
        if not isinstance(each, ast.AnnAssign) or not isinstance(each.value, ast.Call):
            continue
        given = {one.arg: ast.unparse(one.value) for one in each.value.keywords}
        hint = ast.unparse(each.annotation).replace("'", "").replace("_models.", "")
        name = given.get("name", ast.unparse(each.target)).strip("'").replace(".", "\\.")
        what, enumeration = _kind(hint, known)
        read_only = given.get("visibility") == "['read']"
        yield _Member(name, what, enumeration, not hint.startswith("Optional["), read_only)


def _kind(hint: str, known: Mapping[str, ast.ClassDef]) -> tuple[str, str]:
    """Return the type of an annotation, with the enumeration of its texts."""
    if match := re.fullmatch(r"Optional\[(.+)\]", hint):
        return _kind(match[1], known)
    if match := re.fullmatch(r"(?:list|List)\[(.+)\]", hint):
        what, enumeration = _kind(match[1], known)
        return f"[{what}]", enumeration
    if match := re.fullmatch(r"(?:dict|Dict)\[str, (.+)\]", hint):
        what, enumeration = _kind(match[1], known)
        return f"{{{what}}}", enumeration
    if match := re.fullmatch(r"Union\[str, (\w+)\]", hint):
        return "str", match[1] if match[1] in known else ""
    if match := re.fullmatch(r"Literal\[(\w+)\.\w+\]", hint):
        return "str", match[1]
    return ("str" if hint.startswith("Literal[") else _PLAIN.get(hint, hint)), ""


def _literal(made: ast.ClassDef, name: str) -> dict[str, Any]:
    for each in made.body:
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name) and each.targets[0].id == name:
            found: dict[str, Any] = ast.literal_eval(each.value)
            return found
    return {}


def _values(made: ast.ClassDef) -> Iterator[str]:
    for each in made.body:
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant):
            yield str(each.value.value)


# -- operations ----------------------------------------------------------------------------------------------


class Operations:
    """The operations of a release, by `GROUP.NAME`: their requests' methods, paths, parameters and bodies, and what
    they answer. `sources`: the modules of operations.
    """

    def __init__(self, sources: Iterable[str]) -> None:
        self._groups: dict[str, tuple[ast.ClassDef, dict[str, ast.FunctionDef]]] = {}
        for source in sources:
            module = ast.parse(source)
            built = {each.name: each for each in module.body if isinstance(each, ast.FunctionDef)}
            self._groups |= {each.name: (each, built) for each in module.body if isinstance(each, ast.ClassDef)}

    def read(self, name: str, version: str) -> tuple[dict[str, Any], dict[str, str]]:
        """Return an operation, and the members of its page if it lists. Raises ValueError if its requests have another
        api-version than this one."""
        group, _, short = name.partition(".")
        made, built = self._groups[f"{group}Operations"]
        methods = {each.name: each for each in made.body if isinstance(each, ast.FunctionDef)}  # an overload is before
        called = methods[short]
        asked = methods.get(f"_{short.removeprefix('begin_')}_initial", called)
        text = ast.unparse(asked)
        (builder,) = set(re.findall(r"\b(build_\w+_request)\(", text))
        request = ast.unparse(built[builder])
        if (found := re.search(r"'api-version', '([^']+)'\)", request)) is None or found[1] != version:
            raise ValueError(f"{name} is of the api-version {found and found[1]}, and not {version}")
        bodies = {_body(ast.unparse(each.annotation)) for each in _arguments(called) if each.annotation} - {""}
        answer, page = _answer(called, text)
        statuses = re.findall(r"status_code not in \[([\d, ]+)\]", text)[0]
        return {
            "method": re.findall(r"method='(\w+)'", request)[0],
            "path": re.findall(r"'(/[^']*\{[^']*)'", request)[0],
            "query": _query(built[builder]),
            "body": next(iter(bodies), ""),
            "answer": answer,
            "statuses": [int(each) for each in statuses.split(", ")],
        }, page


def _arguments(called: ast.FunctionDef) -> list[ast.arg]:
    return [*called.args.args, *called.args.kwonlyargs]


def _body(hint: str) -> str:
    """Return the type of an argument that is a body; "" for another."""
    match = re.search(r"_models\.(\w+)", hint)
    return match[1] if match and "Union[str" not in hint else ""


def _query(builder: ast.FunctionDef) -> dict[str, bool]:
    """Return a request's parameters, and whether they are required."""
    found: dict[str, bool] = {}
    for statement in builder.body:
        for each in ast.walk(statement):
            target = ast.unparse(each.targets[0]) if isinstance(each, ast.Assign) else ""
            if match := re.fullmatch(r"_params\['(.+)'\]", target):
                found[match[1]] = not isinstance(statement, ast.If)
    return found


def _answer(called: ast.FunctionDef, text: str) -> tuple[str, dict[str, str]]:
    """Return the type of an answer, "" for none; and the members of a page, if it is one."""
    hint = ast.unparse(called.returns or ast.Constant(None)).replace("'", "")
    match = re.search(r"_models\.(\w+)", hint)
    if match is None:
        return "", {}
    if re.match(r"(?:ItemPaged|Iterable)\[", hint):
        named = re.search(r"_deserialize\('(\w+)'", text)
        return (named[1], {}) if named else (f"{match[1]} page", {"value": f"[{match[1]}]", "nextLink": "str"})
    return (f"[{match[1]}]" if "List[" in hint or "list[" in hint else match[1]), {}
