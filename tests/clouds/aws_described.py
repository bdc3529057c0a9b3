"""AWS's requests and answers, held against botocore's own description of the service and the version that is called."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl
from xml.etree.ElementTree import Element, ParseError, fromstring

from botocore.loaders import create_loader
from botocore.model import OperationModel, ServiceModel, Shape

from tests.clouds import covered
from tests.clouds.aws_shapes import (
    Complaint,
    Ec2Form,
    Form,
    Format,
    Json,
    Member,
    Xml,
    bare_tag,
    check_text,
    nested,
    wire_name,
)
from tests.clouds.base import Answer

# botocore's name of a service, where signatures have another.
_SERVICES = {"elasticfilesystem": "efs", "servicequotas": "service-quotas", "tagging": "resourcegroupstaggingapi"}
# Of every request, and of no operation. Source: botocore/auth.py, httpchecksum.py and useragent.py.
_COMMON_HEADERS = re.compile(
    r"x-amz-(content-sha256|date|security-token|target|user-agent|trailer|decoded-content-length|checksum-\w+)"
)
# Of every operation, whichever errors it names. Source: "Common error types" in the services' references.
_COMMON_ERRORS = {"AccessDenied", "AccessDeniedException", "ThrottlingException", "ValidationException"}
# Where a request's value may be outside an enumeration: EC2's types can be newer than botocore's. The test cloud has
# EC2's own refusal for a type that no zone has.
_OPEN = {("RunInstances", "InstanceType")}
# What is answered otherwise than it is described, by moto if nothing else is said: an operation, and where.
_OTHERWISE = {
    # Its own records of a file system and of a mount target, whole; these AWS gives by operations of their own.
    *(("CreateFileSystem", each) for each in ("LifecyclePolicies", "FileSystemPolicy")),
    *(("DescribeFileSystems", f"FileSystems.{each}") for each in ("LifecyclePolicies", "FileSystemPolicy")),
    ("CreateMountTarget", "SecurityGroups"),
    ("DescribeMountTargets", "MountTargets.SecurityGroups"),
    # Its list of types, which it has from EC2, is newer than botocore's enumeration.
    ("DescribeInstanceTypes", "InstanceTypes.ProcessorInfo.SupportedFeatures"),
    # A fault of Amazon's: the pattern has a ^ in its middle, and so matches nothing.
    ("DescribeCapacityReservations", "CapacityReservations.PlacementGroupArn"),
    # No fault: S3's one answer whose root is itself the member; botocore has a handler for it alone.
    ("GetBucketLocation", ""),
}


@dataclass(frozen=True, slots=True)
class _Route:
    """How an operation of a REST service is called."""

    operation: OperationModel
    method: str
    path: re.Pattern[str]
    fixed: Mapping[str, str]  # of the query
    located: Mapping[tuple[str, str], Member]  # by the location and the name there
    required: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class _Found:
    """The operation of a request, and for REST where its path's names stand."""

    operation: OperationModel
    route: _Route | None = None
    names: Mapping[str, str] | None = None


@functools.cache
def _loader() -> Any:
    return create_loader()


class _Service:
    """A service's document, as it is called here."""

    def __init__(self, name: str) -> None:
        self.model = ServiceModel(_loader().load_service_model(name, "service-2"), name)
        self.protocol: str = self.model.resolved_protocol
        self.document = f"{name} {self.model.api_version}"
        forms: dict[str, type[Format]] = {"ec2": Ec2Form, "query": Form, "rest-xml": Xml}
        self.requests = forms.get(self.protocol, Json)(self.model, "request")
        self.answers = (Json if "json" in self.protocol else Xml)(self.model, "answer")
        self.names = frozenset(self.model.operation_names)
        self.routes = self._routes() if self.protocol.startswith("rest") else []

    @functools.cached_property
    def errors(self) -> dict[str, Shape]:
        """By their codes; EC2's model has none."""
        return {each.error_code: each for each in self.model.error_shapes} if self.protocol != "ec2" else {}

    def operation(self, name: str) -> OperationModel | None:
        """None for one that there is not; those that are called are read once."""
        return self.model.operation_model(name) if name in self.names else None

    def _routes(self) -> list[_Route]:
        """The deprecated last: of two with the same address the newer is meant."""
        found = []
        for operation in sorted(map(self.model.operation_model, sorted(self.names)), key=lambda each: each.deprecated):
            path, _, query = operation.http["requestUri"].partition("?")
            pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", re.sub(r"\{(\w+)\+\}", r"(?P<\1>.+)", path.rstrip("/")))
            shape = operation.input_shape
            located = dict(self._located(shape)) if shape is not None else {}
            required = {key for key, each in located.items() if each.name in shape.required_members}
            found.append(
                _Route(
                    operation,
                    operation.http["method"],
                    re.compile(f"{pattern}/?"),
                    dict(parse_qsl(query, keep_blank_values=True)),
                    located,
                    frozenset(each for each in required if each[0] != "uri"),
                )
            )
        return found

    def _located(self, shape: Shape) -> Iterator[tuple[tuple[str, str], Member]]:
        for name, each in shape.members.items():
            if "location" in each.serialization:
                place = each.serialization["location"]
                on_wire = wire_name(each, name)
                key = (place, on_wire.lower() if place.startswith("header") else on_wire)
                yield key, Member(name, f"{shape.name}.{name}", self.requests.node(each))

    def routed(self, environ: Mapping[str, Any]) -> _Found | None:
        """The operation that has most of what a request has beside its path: what it needs, and fixed parameters."""
        query = dict(parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True))
        given = {("querystring", name) for name in query} | {("header", name) for name in _headers(environ)}
        best: tuple[tuple[bool, int], _Found] | None = None
        for route in self.routes:
            if route.method != environ["REQUEST_METHOD"] or not route.fixed.items() <= query.items():
                continue
            match = route.path.fullmatch(environ["PATH_INFO"])
            if match is None:
                continue
            weight = (route.required <= given, len(route.required) + len(route.fixed))
            if best is None or weight > best[0]:
                best = weight, _Found(route.operation, route, match.groupdict())
        return best[1] if best is not None else None


def _headers(environ: Mapping[str, Any]) -> dict[str, str]:
    return {name[5:].lower().replace("_", "-"): value for name, value in environ.items() if name.startswith("HTTP_")}


@functools.cache
def _service(name: str) -> _Service:
    return _Service(_SERVICES.get(name, name))


def routed(service: str, environ: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Return the operation of a REST service that a request calls, and the names in its path; "" for none."""
    found = _service(service).routed(environ)
    return (found.operation.name, dict(found.names or {})) if found is not None else ("", {})


# -- requests ------------------------------------------------------------------------------------------------


def asked(service: str, environ: Mapping[str, Any], body: bytes) -> list[str]:
    """Return what of a request the document does not allow, each with the document's name."""
    of = _service(service)
    found: list[Complaint] = []
    if of.protocol in {"ec2", "query"}:
        name = _asked_by_form(of, body, found)
    elif of.protocol == "json":
        name = _asked_by_target(of, environ, body, found)
    else:
        name = _asked_by_path(of, environ, body, found)
    if name in of.names:
        covered.note_call(of.document, "request", name)
    return [_said(of, "request", name, each) for each in found if not _is_open(name, each)]


def _is_open(operation: str, complaint: Complaint) -> bool:
    where, what = complaint
    return (operation, where) in _OPEN and what.endswith("'s values")


def _read(body: bytes) -> Element:
    return fromstring(body)  # noqa: S314 - the tests' own


def _said(of: _Service, way: str, operation: str, complaint: Complaint) -> str:
    where, what = complaint
    return f"{operation}'s {way}, by botocore's model of {of.document}: {f'{where}: ' if where else ''}{what}"


def _no_operation(name: str) -> Complaint:
    return "", f"there is no operation {name}"


def _asked_by_form(of: _Service, body: bytes, found: list[Complaint]) -> str:
    form = parse_qsl(body.decode(), keep_blank_values=True)
    parameters = nested(form)
    name, version = (str(parameters.pop(key, "")) for key in ("Action", "Version"))
    if version != of.model.api_version:
        found.append(("", f"Version is {version!r}"))
    operation = of.operation(name)
    if operation is None:
        found.append(_no_operation(name))
    elif operation.input_shape is not None:
        of.requests.check(parameters, of.requests.node(operation.input_shape), "", found)
    elif parameters:
        found.append(("", f"it has no parameters, and not {sorted(parameters)}"))
    return name


def _asked_by_target(of: _Service, environ: Mapping[str, Any], body: bytes, found: list[Complaint]) -> str:
    prefix, _, name = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")
    operation = of.operation(name)
    if operation is None or prefix != of.model.metadata["targetPrefix"]:
        found.append(_no_operation(f"{prefix}.{name}"))
    elif operation.input_shape is not None:
        of.requests.check(json.loads(body or b"{}"), of.requests.node(operation.input_shape), "", found)
    return str(name)


def _asked_by_path(of: _Service, environ: Mapping[str, Any], body: bytes, found: list[Complaint]) -> str:
    call = of.routed(environ)
    if call is None or call.route is None:
        found.append(_no_operation(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"))
        return ""
    query = dict(parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True))
    given = {("querystring", name): value for name, value in query.items() if name not in call.route.fixed}
    given |= {("uri", name): value for name, value in (call.names or {}).items()}
    # Those of an object's own metadata are any.
    free = tuple(name for place, name in call.route.located if place == "headers")
    for name, value in _headers(environ).items():
        general = not name.startswith("x-amz-") or _COMMON_HEADERS.fullmatch(name) or name.startswith(free)
        if ("header", name) in call.route.located or not general:
            given["header", name] = value
    for key, value in given.items():
        member = call.route.located.get(key)
        if member is None:
            found.append((key[1], f"{call.operation.name} has no {key[0]} {key[1]}"))
            continue
        of.requests.note(member)
        if member.node.kind == "list":
            member = Member(member.name, member.full, of.requests.item(member.node))
        check_text(value, member.node, member.name, found)
    for place, name in call.route.required - given.keys():
        found.append((call.route.located[place, name].name, f"{call.operation.name} lacks {name}, which is required"))
    _check_body(of, of.requests, call.operation.input_shape, body, found)
    return str(call.operation.name)


def _check_body(of: _Service, format_: Format, shape: Shape | None, body: Any, found: list[Complaint]) -> None:
    """What a REST service's body has, of a request or an answer: one member alone, or all that are nowhere else."""
    payload = shape.serialization.get("payload") if shape is not None else None
    if shape is not None and payload is not None:
        is_required, shape = payload in shape.required_members, shape.members[payload]
        if not body and is_required:
            found.append((payload, f"it lacks {payload}, which is required"))
        if not body or shape.type_name != "structure":
            return
    node = format_.node(shape) if shape is not None else None
    if not body:
        if node is not None:
            format_.check({} if isinstance(format_, Json) else Element(""), node, "", found)
    elif node is None or not format_.members(node):
        found.append(("", f"there is no body, and not {body[:200]!r}"))
    elif isinstance(format_, Json):
        format_.check(body if isinstance(body, dict) else json.loads(body), node, "", found)
    else:
        root = _read(body)
        if payload is not None and bare_tag(root.tag) != (name := wire_name(node.shape, payload)):
            found.append(("", f"{node.name} is called {name}, and not {bare_tag(root.tag)}"))
        format_.check(root, node, "", found)


# -- answers -------------------------------------------------------------------------------------------------


def against(service: str, environ: Mapping[str, Any], action: str, answer: Answer) -> list[str]:
    """Return what of an answer the document does not know, each with the document's name."""
    of = _service(service)
    if of.routes:
        call = of.routed(environ)
        operation = call.operation if call is not None else None
    else:
        operation = of.operation(action)
    if operation is None:
        return [_said(of, "answer", action, _no_operation(action))]
    found: list[Complaint] = []
    if answer.status >= 300:
        _check_error(of, operation, answer, found)
        return [_said(of, "error", operation.name, each) for each in found]
    covered.note_call(of.document, "answer", operation.name)
    shape = operation.output_shape
    if operation.http.get("responseCode", answer.status) != answer.status:
        found.append(("", f"its status is {operation.http['responseCode']}, and not {answer.status}"))
    try:
        if of.protocol in {"ec2", "query"}:
            _check_result(of, operation, answer.payload, found)
        elif of.protocol == "json" and shape is None:
            if answer.payload not in {b"", b"{}"}:
                found.append(("", f"there is no body, and not {answer.payload[:200]!r}"))
        else:
            body = answer.body if isinstance(answer.body, dict) else answer.payload
            _check_body(of, of.answers, shape, body, found)
    except (ParseError, ValueError) as error:
        found.append(("", f"it cannot be read: {error}"))
    return [_said(of, "answer", operation.name, each) for each in found if (operation.name, each[0]) not in _OTHERWISE]


def _check_result(of: _Service, operation: OperationModel, body: bytes, found: list[Complaint]) -> None:
    """EC2's result is the root; the others' is an element of its own, beside the request's id."""
    root = _read(body)
    if bare_tag(root.tag) != f"{operation.name}Response":
        found.append(("", f"its root is {operation.name}Response, and not {bare_tag(root.tag)}"))
    shape = operation.output_shape
    if of.protocol == "ec2":
        # EC2's reference has both with every operation, and the model has neither.
        outer = {"requestId", "return"} if shape is None else {"requestId"}
        for each in [each for each in root if bare_tag(each.tag) in outer]:
            root.remove(each)
        result: Element | None = root
    else:
        wrapper = shape.serialization["resultWrapper"] if shape is not None else ""
        parts = {bare_tag(each.tag): each for each in root}
        beside = parts.keys() - {wrapper, "ResponseMetadata"}
        found += [(name, f"there is no {name} beside {wrapper or 'ResponseMetadata'}") for name in beside]
        result = parts.get(wrapper)
        if wrapper and result is None:
            found.append(("", f"it lacks {wrapper}"))
    if shape is None and result is not None:
        found += [(bare_tag(each.tag), "there is no result") for each in result]
    elif shape is not None and result is not None:
        of.answers.check(result, of.answers.node(shape), "", found)


# -- errors --------------------------------------------------------------------------------------------------


def error_format(service: str, code: str) -> tuple[int | None, str]:
    """Return an error's HTTP status, where the document has it, and what the member with its message is called."""
    shape = _service(service).errors.get(code)
    if shape is None:
        return None, "message"
    names = [name for name in shape.members if name.lower() == "message"]
    return shape.metadata.get("error", {}).get("httpStatusCode"), *(names or ["message"])[:1]


def _check_error(of: _Service, operation: OperationModel, answer: Answer, found: list[Complaint]) -> None:
    """An error that the document knows; those that all services have, and all of EC2's, are not in it."""
    body: Any = None
    if of.protocol == "ec2":
        return
    if "json" in of.protocol:
        body = answer.body if isinstance(answer.body, dict) else json.loads(answer.payload or b"{}")
        code = str(answer.headers.get("x-amzn-ErrorType") or body.get("__type", ""))
        code = code.partition(":")[0].rpartition("#")[2]
        body = {key: each for key, each in body.items() if key != "__type"}
    else:
        code = next((each.text or "" for each in _read(answer.payload).iter() if bare_tag(each.tag) == "Code"), "")
    shape = of.errors.get(code)
    if not code:
        found.append(("", f"it has no code: {answer.payload[:200]!r}"))
    if shape is None:
        return
    covered.note_call(of.document, "answer", operation.name)
    # S3's model has but a few with each operation, and each operation has them all: "List of error codes", S3 API.
    known = {each.error_code for each in operation.error_shapes} | _COMMON_ERRORS
    if operation.error_shapes and code not in known and of.protocol != "rest-xml":
        found.append(("", f"{operation.name} has no error {code}"))
    status = shape.metadata.get("error", {}).get("httpStatusCode", answer.status)
    if status != answer.status:
        found.append(("", f"the status of {code} is {status}, and not {answer.status}"))
    if body is not None:
        of.answers.check(body, of.answers.node(shape), code, found)
