"""An S3 server on loopback: moto's, behind a gate that can misbehave as S3 does on its worst day."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import boto3
from moto.server import create_backend_app

from tests.clouds.aws_described import against, asked
from tests.clouds.base import Answer as Answered
from tests.support.object_gate import Answer, Fault, Gate, Request, by_application

__all__ = ["DENIED", "INTERNAL", "REGION", "S3", "SLOW_DOWN", "Fault", "Request", "s3_here"]

REGION = "us-east-1"
SLOW_DOWN = "503 Slow Down", "SlowDown", "Please reduce your request rate."
DENIED = "403 Forbidden", "AccessDenied", "Access Denied"
INTERNAL = "500 Internal Server Error", "InternalError", "We encountered an internal error. Please try again."
_PREFIX = "prefix/job-1"


class S3(Gate):
    """moto's S3, with one bucket."""

    slow_down, internal, denied = SLOW_DOWN, INTERNAL, DENIED
    missing = "404 Not Found", "NoSuchBucket", "The specified bucket does not exist"

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._moto = create_backend_app("s3")
        # What of the requests, and of moto's answers, S3's own description does not know.
        self.complaints: list[str] = []
        super().__init__(host, f"checkpoints-{secrets.token_hex(6)}")

    @property
    def place(self) -> str:
        """As the base says."""
        return self.place_of(self.bucket, _PREFIX)

    @property
    def environ(self) -> dict[str, str]:
        """As the base says."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": REGION,
        }

    @property
    def client(self) -> Any:
        """boto3's."""
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        return boto3.client("s3", endpoint_url=self.url, region_name=REGION, **keys)

    def place_of(self, bucket: str, prefix: str) -> str:
        """As the base says."""
        return f"s3://{bucket}/{prefix}"

    def keys(self) -> dict[str, int]:
        """As the base says."""
        found = self.client.list_objects_v2(Bucket=self.bucket, Prefix=f"{_PREFIX}/").get("Contents", [])
        return {each["Key"].removeprefix(f"{_PREFIX}/"): each["Size"] for each in found}

    def read(self, key: str) -> bytes:
        """As the base says."""
        found: bytes = self.client.get_object(Bucket=self.bucket, Key=f"{_PREFIX}/{key}")["Body"].read()
        return found

    def write(self, key: str, data: bytes) -> None:
        """As the base says."""
        self.client.put_object(Bucket=self.bucket, Key=f"{_PREFIX}/{key}", Body=data)

    def remove(self, key: str) -> None:
        """As the base says."""
        self.client.delete_object(Bucket=self.bucket, Key=f"{_PREFIX}/{key}")

    def make_bucket(self) -> None:
        """As the base says."""
        self.client.create_bucket(Bucket=self.bucket)

    def serve(self, environ: dict[str, Any], body: bytes) -> Answer:
        """As the base says."""
        self.complaints += asked("s3", environ, body)
        status, headers, content = by_application(self._moto, environ, body)
        if environ["REQUEST_METHOD"] != "HEAD":  # whose answers have no body, of errors neither
            self.complaints += against("s3", environ, "", Answered(int(status.split()[0]), content))
        return status, headers, content

    @contextmanager
    def running(self) -> Iterator[Self]:
        """As the base says; no request and no answer may be one that S3 does not know."""
        with super().running() as server:
            yield server
        assert not self.complaints, "\n".join(dict.fromkeys(self.complaints))


@contextmanager
def s3_here() -> Iterator[S3]:
    """A running one that this process's own clients use."""
    with S3().here() as server:
        yield server
