"""What pydantic finds wrong in a file that a person wrote, as one sentence."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from supervisor.removed import INSTEAD


def first_error(error: ValidationError, what: str, model: type[BaseModel], alone: frozenset[str] = frozenset()) -> str:
    """Return the first of pydantic's errors as one sentence, and how many more there are. `alone`: keys of lists that
    were given one entry without a list."""
    # An unknown key first: misspelt, it also makes another one missing.
    errors = sorted(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
    first = errors[0]
    path = first["loc"]
    path = (path[0], *path[2:]) if path and path[0] in alone else path
    where = ".".join(str(part) for part in path) or "as a whole"
    more = f" ({len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{what}: {_sentence(first, where, model)}{more}"


def _sentence(error: Any, where: str, model: type[BaseModel]) -> str:
    kind, given = error["type"], error.get("input")
    if {"env", "secrets"} & set(error["loc"]) and isinstance(given, str | list | tuple | dict):
        given = "…"  # it may hold a secret, and the daemon's log is where a sentence on its configuration goes
    if kind == "extra_forbidden":
        return _unknown(where, error["loc"], model)
    if kind == "missing":
        return f"`{where}` is missing"
    if kind == "value_error":
        return f"`{where}`: {error['ctx']['error']}"
    if kind == "string_pattern_mismatch" and where == "name":
        return f"`name` is {given!r}; use 2 to 40 of a-z, 0-9 and -, beginning with a letter, not ending with -"
    if kind == "model_type":
        known = _known_keys(model, error["loc"])
        return f"`{where}` is {given!r}; write a mapping with keys such as {', '.join(known)}"
    if kind in {"dict_type", "mapping_type"}:
        return f"`{where}` is {given!r}; write a mapping, such as {{NAME: value}}"
    if kind == "tuple_type":
        return f"`{where}` is {given!r}; write a list, such as [{given}]"
    if kind in {"float_type", "int_type"}:
        return f"`{where}` is {given!r}; write a number, without quotes and without a unit"
    if kind == "string_type" and not isinstance(given, dict | list | tuple):
        return f"`{where}` is {given!r}; write a text, in quotes"
    message = error["msg"][0].lower() + error["msg"][1:]
    return f"`{where}` is {given!r}: {message}"


def _unknown(where: str, path: tuple[Any, ...], model: type[BaseModel]) -> str:
    if where in INSTEAD:
        return f"`{where}` is not a key any more; {INSTEAD[where]}"
    known = _known_keys(model, path[:-1])
    return f"unknown key `{where}`" + (f"; known here: {', '.join(known)}" if known else "")


def _known_keys(model: type[BaseModel], path: tuple[Any, ...]) -> list[str]:
    for part in path:
        if isinstance(part, int):
            continue  # an entry of a list has the keys of any other
        field = model.model_fields.get(part)
        kinds = (field.annotation, *get_args(field.annotation)) if field else ()
        inner = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)
