"""Values on AWS's wire, held against the shapes of botocore's service models: in XML, in JSON, and in a form.

botocore itself passes over what it does not know of an answer, and checks no values, lengths and patterns of a request.
"""

from __future__ import annotations

import binascii
import functools
import re
from abc import ABC, abstractmethod
from base64 import b64decode
from collections.abc import Iterable, Mapping
from typing import Any
from xml.etree.ElementTree import Element

from botocore.model import ServiceModel, Shape

from tests.clouds import covered

# Where in the value, by members' names and without the places in lists; and what is wrong there.
Complaint = tuple[str, str]
_ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)")
_RFC = re.compile(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT")
_NUMBERS = {
    **dict.fromkeys(("integer", "long"), re.compile(r"-?\d+")),
    **dict.fromkeys(("float", "double"), re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")),
}
# Java's classes of characters, which stand only among others in brackets, and Python's, which are somewhat wider.
_CLASSES = {"L": r"\w", "M": r"\w", "N": r"\d", "Z": r"\s", "P": r"!-/:-@\[-`{-~"}


@functools.cache
def _pattern(pattern: str) -> re.Pattern[str] | None:
    """None for the few that Python cannot read."""
    try:
        return re.compile(re.sub(r"\\p\{(\w)\}", lambda match: _CLASSES[match[1]], pattern))
    except (re.error, KeyError):
        return None


def wire_name(shape: Shape, name: str) -> str:
    """Return the name on the wire of a member or an item."""
    return str(shape.serialization.get("name", name))


class Node:
    """A shape as one format has it. Its members are known once they are asked for, as shapes can contain themselves."""

    __slots__ = ("_format", "enum", "flat", "kind", "least", "most", "name", "pattern", "shape", "timestamp")

    def __init__(self, shape: Shape, format_: Format) -> None:
        self.shape = shape
        self.name = shape.name
        self.kind = shape.type_name
        self.flat = bool(shape.serialization.get("flattened"))
        self.timestamp = shape.serialization.get("timestampFormat", format_.timestamp)
        self.enum = frozenset(shape.metadata.get("enum", ()))
        self.least, self.most = (shape.metadata.get(key) for key in ("min", "max"))
        self.pattern = _pattern(shape.metadata["pattern"]) if "pattern" in shape.metadata else None
        self._format = format_


class Member:
    """A member of a structure."""

    __slots__ = ("full", "name", "node", "noted")

    def __init__(self, name: str, full: str, node: Node) -> None:
        self.name = name
        self.full = full  # with its type
        self.node = node
        self.noted = False


class Format(ABC):
    """One format of a document's requests, or of its answers. `nodes` are read once."""

    timestamp = "iso8601"

    def __init__(self, model: ServiceModel, way: str) -> None:
        self.document = f"{model.service_name} {model.api_version}"
        self._way = way
        self._nodes: dict[tuple[Any, ...], Node] = {}
        self._members: dict[str, dict[str, Member]] = {}
        self._required: dict[str, frozenset[str]] = {}
        self._items: dict[str, Node] = {}

    def node(self, shape: Shape) -> Node:
        """Return the node of a shape; what the member that has it says beside counts too."""
        more = shape.serialization
        key = (shape.name, more.get("flattened"), more.get("timestampFormat"))
        if key not in self._nodes:
            self._nodes[key] = Node(shape, self)
        return self._nodes[key]

    def members(self, node: Node) -> dict[str, Member]:
        """Return a structure's members in the body, by their names on the wire."""
        if (found := self._members.get(node.name)) is None:
            found = {
                self.name_of(name, shape): Member(name, f"{node.name}.{name}", self.node(shape))
                for name, shape in node.shape.members.items()
                if "location" not in shape.serialization
            }
            required = set(node.shape.required_members)
            self._required[node.name] = frozenset(key for key, each in found.items() if each.name in required)
            self._members[node.name] = found
        return found

    def item(self, node: Node) -> Node:
        """Return what a list consists of."""
        if (found := self._items.get(node.name)) is None:
            found = self._items[node.name] = self.node(node.shape.member)
        return found

    def check(self, value: Any, node: Node, where: str, found: list[Complaint]) -> None:
        """Add what the document does not allow of a value."""
        if node.kind == "structure":
            self._check_structure(value, node, where, found)
        elif node.kind == "list":
            items = self.items_of(value, node, where, found)
            _check_size(len(items), "items", node, where, found)
            item = self.item(node)
            for each in items:
                self.check(each, item, where, found)
        elif node.kind == "map":
            self.check_map(value, node, where, found)
        else:
            self.check_scalar(value, node, where, found)

    def _check_structure(self, value: Any, node: Node, where: str, found: list[Complaint]) -> None:
        if node.shape.is_document_type:
            return
        members = self.members(node)
        parts = self.parts_of(value, node, where, found)
        for key, each in parts.items():
            member = members.get(key)
            inner = f"{where}.{member.name if member else key}" if where else member.name if member else key
            if member is None:
                found.append((inner, f"{node.name} has no member {key}"))
                continue
            self.note(member)
            self.check(each, member.node, inner, found)
        for key in self._required[node.name] - parts.keys():
            inner = f"{where}.{members[key].name}" if where else members[key].name
            found.append((inner, f"{node.name} lacks {key}, which is required"))
        if node.shape.is_tagged_union and len(parts) != 1:
            found.append((where, f"{node.name} has one member, and not {len(parts)}"))

    def note(self, member: Member) -> None:
        """Count a member as met, once."""
        if not member.noted:
            covered.note_member(self.document, self._way, member.full)
            member.noted = True

    @abstractmethod
    def name_of(self, name: str, shape: Shape) -> str:
        """A member's name on the wire."""

    def parts_of(self, value: Any, node: Node, where: str, found: list[Complaint]) -> dict[str, Any]:
        """What a structure has, by the names on the wire."""
        if not isinstance(value, dict):
            found.append((where, f"{node.name} is a structure, and not {value!r}"))
            return {}
        return value

    @abstractmethod
    def items_of(self, value: Any, node: Node, where: str, found: list[Complaint]) -> list[Any]:
        """What a list has."""

    def check_map(self, value: Any, node: Node, where: str, found: list[Complaint]) -> None:
        """Check names and values; only JSON has maps in what is called."""
        found.append((where, f"no test cloud knows maps of this format, as {node.name} is one"))

    def check_scalar(self, value: Any, node: Node, where: str, found: list[Complaint]) -> None:
        """Check the text of a value."""
        check_text(value, node, where, found)


def check_text(text: str, node: Node, where: str, found: list[Complaint]) -> None:
    """Check a value that is written as text."""
    kind = node.kind
    if kind == "string":
        if node.enum and text not in node.enum:
            found.append((where, f"{text!r} is none of {node.name}'s values"))
        _check_size(len(text), "characters", node, where, found)
        if node.pattern is not None and node.pattern.fullmatch(text) is None:
            found.append((where, f"{text!r} is not as {node.name}'s pattern {node.pattern.pattern}"))
    elif kind in _NUMBERS:
        if _NUMBERS[kind].fullmatch(text) is None:
            found.append((where, f"{text!r} is no {kind}"))
        else:
            _check_size(float(text), "as a value", node, where, found)
    elif kind == "boolean":
        if text not in {"true", "false"}:
            found.append((where, f"{text!r} is no boolean"))
    elif kind == "timestamp":
        if (_RFC if node.timestamp == "rfc822" else _ISO).fullmatch(text) is None:
            found.append((where, f"{text!r} is no timestamp of the format {node.timestamp}"))
    elif kind == "blob":
        try:
            b64decode(text, validate=True)
        except binascii.Error:
            found.append((where, f"{text[:20]!r} is not base64"))


def _check_size(size: float, what: str, node: Node, where: str, found: list[Complaint]) -> None:
    if (node.least is not None and size < node.least) or (node.most is not None and size > node.most):
        found.append((where, f"{node.name} has {node.least} to {node.most}, and not {size:g} {what}"))


def bare_tag(tag: str) -> str:
    """Return an element's name without its namespace."""
    return tag.rpartition("}")[2]


class Xml(Format):
    """XML. `item`: what a list's items are called where the shape does not say it."""

    def name_of(self, name: str, shape: Shape) -> str:
        """As the base says; a list without an element of its own has its items' name."""
        if shape.type_name == "list" and shape.serialization.get("flattened"):
            name = wire_name(shape.member, name)
        return wire_name(shape, name).rpartition(":")[2]

    def parts_of(self, value: Element, node: Node, where: str, found: list[Complaint]) -> dict[str, Any]:
        """As the base says: elements, and attributes."""
        members = self.members(node)
        parts: dict[str, Any] = {}
        for each in value:
            key = bare_tag(each.tag)
            member = members.get(key)
            if member is not None and member.node.flat and member.node.kind == "list":
                parts.setdefault(key, []).append(each)
            elif key in parts:
                found.append((where, f"{key} is there twice"))
            else:
                parts[key] = each
        for key in value.attrib:
            parts[bare_tag(key)] = value.attrib[key]
        if (value.text or "").strip():
            found.append((where, f"{node.name} is a structure, and not {value.text!r}"))
        return parts

    def items_of(self, value: Any, node: Node, where: str, found: list[Complaint]) -> list[Any]:
        """As the base says."""
        if isinstance(value, list):
            return value
        name = wire_name(node.shape.member, "member")
        items = list(value)
        if any(bare_tag(each.tag) != name for each in items) or (value.text or "").strip():
            found.append((where, f"{node.name} consists of elements {name}"))
        return items

    def check_scalar(self, value: Any, node: Node, where: str, found: list[Complaint]) -> None:
        """As the base says."""
        if isinstance(value, str):
            check_text(value, node, where, found)
        elif len(value):
            found.append((where, f"{node.name} is a {node.kind}, and has no elements"))
        else:
            check_text(value.text or "", node, where, found)


class Form(Format):
    """The parameters of a form, with their dots resolved: see `nested`."""

    def name_of(self, name: str, shape: Shape) -> str:
        """As the base says."""
        if shape.type_name == "list" and shape.serialization.get("flattened"):
            name = wire_name(shape.member, name)
        return wire_name(shape, name)

    def items_of(self, value: Any, node: Node, where: str, found: list[Complaint]) -> list[Any]:
        """As the base says. An empty text is an empty list."""
        if value == "":
            return []
        if not node.flat and isinstance(value, dict) and not self._always_flat:
            name = wire_name(node.shape.member, "member")
            if value.keys() != {name}:
                found.append((where, f"{node.name} consists of {name}s, and not of {sorted(value)}"))
                return []
            value = value[name]
        if not isinstance(value, dict) or set(value) != {str(each) for each in range(1, len(value) + 1)}:
            found.append((where, f"{node.name} is a list, with the numbers from 1"))
            return []
        return list(value.values())

    def check_scalar(self, value: Any, node: Node, where: str, found: list[Complaint]) -> None:
        """As the base says."""
        if isinstance(value, dict):
            found.append((where, f"{node.name} is a {node.kind}, and has no members"))
        else:
            check_text(value, node, where, found)

    _always_flat = False


class Ec2Form(Form):
    """EC2's, whose names begin with a capital and whose lists are all flat."""

    _always_flat = True

    def name_of(self, name: str, shape: Shape) -> str:
        """As botocore's serializer of this protocol has it."""
        given = shape.serialization
        if "queryName" in given:
            return str(given["queryName"])
        return f"{given['name'][0].upper()}{given['name'][1:]}" if "name" in given else name


def nested(form: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return a form's parameters as dictionaries in dictionaries, by the parts of their names."""
    root: dict[str, Any] = {}
    for name, value in form:
        *path, last = name.split(".")
        place = root
        for each in path:
            inner = place.setdefault(each, {})
            if not isinstance(inner, dict):
                inner = place[each] = {"": inner}
            place = inner
        if last in place:
            last = f"{last}, a second time"
        place[last] = value
    return root


class Json(Format):
    """JSON."""

    timestamp = "unixtimestamp"
    _TYPES: Mapping[str, Any] = {
        **dict.fromkeys(("string", "blob"), (str,)),
        **dict.fromkeys(("integer", "long"), (int,)),
        **dict.fromkeys(("float", "double"), (int, float)),
        "boolean": (bool,),
    }

    def name_of(self, name: str, shape: Shape) -> str:
        """As the base says."""
        return wire_name(shape, name)

    def items_of(self, value: Any, node: Node, where: str, found: list[Complaint]) -> list[Any]:
        """As the base says."""
        if not isinstance(value, list):
            found.append((where, f"{node.name} is a list, and not {value!r}"))
            return []
        return value

    def check_map(self, value: Any, node: Node, where: str, found: list[Complaint]) -> None:
        """As the base says."""
        if not isinstance(value, dict):
            found.append((where, f"{node.name} is a map, and not {value!r}"))
            return
        _check_size(len(value), "entries", node, where, found)
        key, inner = self.node(node.shape.key), self.node(node.shape.value)
        for name, each in value.items():
            check_text(name, key, f"{where}.*", found)
            self.check(each, inner, f"{where}.*", found)

    def check_scalar(self, value: Any, node: Node, where: str, found: list[Complaint]) -> None:
        """As the base says, with JSON's own types."""
        written = node.timestamp in {"iso8601", "rfc822"}
        types = self._TYPES.get(node.kind) or ((str,) if written else (int, float))
        if not isinstance(value, types) or (isinstance(value, bool) and node.kind != "boolean"):
            found.append((where, f"{value!r} is no {node.kind}"))
        elif isinstance(value, str):
            check_text(value, node, where, found)
        elif node.kind in _NUMBERS:
            _check_size(value, "as a value", node, where, found)
