"""EC2's wire format, as the test cloud implements it: requests, answers and errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from moto.core.serialize import EC2Serializer
from moto.core.utils import get_service_model

from tests.clouds.aws_described import error_format, routed
from tests.clouds.base import Answer, FakeError

XML = {"Content-Type": "text/xml"}
# HTTP statuses: the EC2 API reference; InsufficientInstanceCapacity comes with a 500.
_STATUS = {
    "InsufficientInstanceCapacity": 500,
    "InternalError": 500,
    "RequestLimitExceeded": 503,
    "Unavailable": 503,
    "DryRunOperation": 412,
    "UnauthorizedOperation": 403,
    "AuthFailure": 401,
}


# "List of error codes", S3 API.
_S3_STATUS = {
    **dict.fromkeys(("NoSuchBucket", "NoSuchTagSet", "NoSuchLifecycleConfiguration"), 404),
    **dict.fromkeys(("BucketAlreadyExists", "BucketAlreadyOwnedByYou", "BucketNotEmpty", "OperationAborted"), 409),
    "AccessDenied": 403,
    "SlowDown": 503,
}
# By method and a parameter of the query: the permission's name, and so the action's. Of buckets, and of objects.
_S3_OF_BUCKETS = {
    "GET tagging": "GetBucketTagging",
    "GET publicAccessBlock": "GetBucketPublicAccessBlock",
    "GET lifecycle": "GetLifecycleConfiguration",
    "GET versions": "ListBucketVersions",
    "GET uploads": "ListBucketMultipartUploads",
    "PUT ": "CreateBucket",
    "PUT publicAccessBlock": "PutBucketPublicAccessBlock",
    "PUT tagging": "PutBucketTagging",
    "PUT lifecycle": "PutLifecycleConfiguration",
    "POST delete": "DeleteObject",
    "DELETE ": "DeleteBucket",
}
_S3_OF_OBJECTS = {"DELETE uploadId": "AbortMultipartUpload"}


@dataclass(frozen=True, slots=True)
class Call:
    """One request: `form` is EC2's flat parameters, or a JSON service's; `environ` and `body` are WSGI's, for moto;
    `wrong`: what of it AWS's own description does not allow.
    """

    service: str
    region: str
    action: str
    form: Mapping[str, str]
    environ: Mapping[str, Any]
    body: bytes
    wrong: Sequence[str] = ()

    def listed(self, prefix: str) -> list[str]:
        """prefix.1, prefix.2, …"""
        return [value for name, value in self.form.items() if re.fullmatch(rf"{prefix}\.\d+", name)]

    def filters(self) -> dict[str, list[str]]:
        """Filter.1.Name=… Filter.1.Value.1=…"""
        names = {name: value for name, value in self.form.items() if re.fullmatch(r"Filter\.\d+\.Name", name)}
        return {value: self.listed(f"{name.removesuffix('.Name')}.Value") for name, value in names.items()}

    def tags(self, kind: str) -> dict[str, str]:
        """The tags that a request gives resources of this kind."""
        found: dict[str, str] = {}
        for name, value in self.form.items():
            if re.fullmatch(r"TagSpecification\.\d+\.ResourceType", name) and value == kind:
                found |= self._pairs(f"{name.removesuffix('.ResourceType')}.Tag")
        return found

    def _pairs(self, prefix: str) -> dict[str, str]:
        keys = [name for name in self.form if re.fullmatch(rf"{prefix}\.\d+\.Key", name)]
        return {self.form[name]: self.form[f"{name.removesuffix('Key')}Value"] for name in keys}


class FakeAwsError(FakeError):
    """An error by its code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    def answer(self, call: Call) -> Answer:
        """In the format of the called service."""
        described, message_key = error_format(call.service, self.code)
        status = described or _STATUS.get(self.code, 400)
        if call.service == "elasticfilesystem":
            error = {"ErrorCode": self.code, "Message": str(self)}
            return Answer(status, error, {"x-amzn-ErrorType": self.code})
        if call.service == "fis":
            return Answer(status, {message_key: str(self)}, {"x-amzn-ErrorType": self.code})
        if call.service == "s3":
            name = "SlowDown" if self.code == "RequestLimitExceeded" else self.code
            text = f"<Error><Code>{escape(name)}</Code><Message>{escape(str(self))}</Message></Error>"
            return Answer(described or _S3_STATUS.get(name, status), text.encode(), {"Content-Type": "application/xml"})
        if call.service in {"ssm", "servicequotas", "pricing", "kms", "tagging"}:
            return Answer(status, {"__type": self.code, message_key: str(self)})
        code, message = escape(self.code), escape(str(self))
        if call.service in {"sts", "iam"}:
            text = f"<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error>"
            text += "<RequestId>test</RequestId></ErrorResponse>"
        else:
            text = f"<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
            text += "<RequestID>test</RequestID></Response>"
        return Answer(status, text.encode(), XML)


def read_call(environ: Mapping[str, Any], body: bytes) -> Call:
    """The service and region, by the signature's scope as in moto."""
    scope = re.search(r"Credential=[^/]+/\d+/([^/]+)/([^/]+)/", environ.get("HTTP_AUTHORIZATION", ""))
    region, service = (scope[1], scope[2]) if scope else ("us-east-1", "ec2")
    if target := environ.get("HTTP_X_AMZ_TARGET"):
        return Call(service, region, target.rpartition(".")[2], json.loads(body or b"{}"), environ, body)
    if service in {"elasticfilesystem", "fis"}:
        return _rest_call(service, region, environ, body)
    if service == "s3":
        return _s3_call(region, environ, body)
    form = dict(parse_qsl(body.decode(), keep_blank_values=True))
    return Call(service, region, form.get("Action", ""), form, environ, body)


def _rest_call(service: str, region: str, environ: Mapping[str, Any], body: bytes) -> Call:
    """By method and path. What the path, the query and the body name is in one form."""
    action, names = routed(service, environ)
    form = {**dict(parse_qsl(environ.get("QUERY_STRING", ""))), **(json.loads(body) if body else {}), **names}
    return Call(service, region, action, form, environ, body)


def _s3_call(region: str, environ: Mapping[str, Any], body: bytes) -> Call:
    """By method, path (/BUCKET or /BUCKET/KEY) and query. What only tests call has no name of its own."""
    bucket, _, key = environ["PATH_INFO"].lstrip("/").partition("/")
    query = dict(parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True))
    known = _S3_OF_OBJECTS if key else _S3_OF_BUCKETS
    names = [f"{environ['REQUEST_METHOD']} {name}" for name in query or ("",)]
    action = next((known[name] for name in names if name in known), names[0])
    return Call("s3", region, action, {"Bucket": bucket, "Key": key, **query}, environ, body)


def ec2_answer(action: str, result: Mapping[str, Any]) -> Answer:
    """A result in EC2's format, from boto3's."""
    model = get_service_model("ec2").operation_model(action)
    body = EC2Serializer(operation_model=model).serialize(result)["body"]
    return Answer(200, body if isinstance(body, bytes) else body.encode(), XML)


def without(body: bytes, elements: Iterable[str]) -> bytes:
    """An answer that lacks some elements."""
    for name in elements:
        body = re.sub(rb"<%b>.*?</%b>|<%b\s*/>" % ((name.encode(),) * 3), b"", body, flags=re.DOTALL)
    return body


def matches(filters: Mapping[str, Iterable[str]], values: Mapping[str, str]) -> bool:
    """Whether something with these values passes all filters; an unknown filter is an error."""
    for name, wanted in filters.items():
        if name == "tag-key":
            if not any(f"tag:{key}" in values for key in wanted):
                return False
            continue
        if name not in values and not name.startswith("tag:"):
            raise FakeAwsError("InvalidParameterValue", f"The filter '{name}' is invalid")
        if values.get(name, "") not in wanted:
            return False
    return True
