"""Calls to AWS through boto3: bounded in time; errors differ by whether the call can have had an effect.

boto3's own retries are off: it would repeat a launch in a full zone (HTTP 500), and sleep beyond our limit.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from typing import Any

from provisioners.aws.errors import ERRORS, AwsErrorReply
from provisioners.aws.settings import AwsSettings
from provisioners.base import ProvisionerError
from provisioners.calls import SHORTEST_S, Deadline, NoAnswerError, NoCredentialsError, NotSentError, one_line, repeated
from provisioners.codes import ApiError

MAX_PAGES = 100
CREDENTIALS_HINT = "; set them up for the daemon's user, or name one by aws.profile"
_MAX_S = 32.0
_POOL = 32
_NAMES = {
    "ec2": "EC2",
    "ssm": "SSM",
    "sts": "STS",
    "service-quotas": "Service Quotas",
    "efs": "EFS",
    "iam": "IAM",
    "kms": "KMS",
    "s3": "S3",
    "resourcegroupstaggingapi": "AWS Resource Groups Tagging",
    "pricing": "AWS Price List",
}


class Aws:
    """boto3's clients, created on first use and kept: creating one takes longer than a call. Thread-safe."""

    def __init__(self, settings: AwsSettings) -> None:
        try:
            import boto3  # noqa: F401
        except ImportError as error:
            raise ProvisionerError(
                "the SDK for AWS (boto3) is not installed: pip install 'spotsup[aws]', or take [aws] out of the "
                "configuration"
            ) from error
        self._settings = settings
        self._lock = threading.Lock()
        self._session: Any = None
        self._clients: dict[tuple[str, str, float], Any] = {}

    def once(self, service: str, region: str, operation: str, timeout_s: float, **parameters: Any) -> dict[str, Any]:
        """Make one call, in one attempt. Raises ApiError, NotSentError, NoAnswerError, NoCredentialsError."""
        from botocore import exceptions as boto
        from botocore.parsers import ResponseParserError

        where = f"{_NAMES[service]} in {region}"
        try:
            client = self._client(service, region, timeout_s)
            answer: dict[str, Any] = getattr(client, operation)(**parameters)
        except boto.ClientError as error:
            raw = error.response.get("Error", {})
            reply = AwsErrorReply(_NAMES[service], region, raw.get("Code", ""), raw.get("Message", ""))
            raise ApiError(reply) from error
        except (boto.NoCredentialsError, boto.PartialCredentialsError, boto.ProfileNotFound) as error:
            raise NoCredentialsError(f"no AWS credentials found: {one_line(error)}") from error
        except (boto.CredentialRetrievalError, boto.TokenRetrievalError, boto.SSOError) as error:
            raise NoCredentialsError(f"AWS credentials cannot be fetched: {one_line(error)}") from error
        except (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError) as error:
            raise NotSentError(f"{where} cannot be reached: {one_line(error)}") from error
        except boto.SSLError as error:
            raise NotSentError(f"{where} failed the TLS check: {one_line(error)}") from error
        except (boto.HTTPClientError, boto.BotoCoreError, ResponseParserError) as error:
            if isinstance(error, boto.ParamValidationError | boto.UnknownServiceError | boto.InvalidRegionError):
                raise ProvisionerError(f"{where}: {one_line(error)}") from error
            # Read timeouts, broken connections, and unreadable answers.
            raise NoAnswerError(f"{where} gave no usable answer: {one_line(error)}") from error
        return answer

    def ask(
        self, service: str, region: str, operation: str, deadline: Deadline, *, want: str = "", **parameters: Any
    ) -> dict[str, Any]:
        """Make one call that may be repeated. `want`: a key that every answer has; without it, it is not AWS's answer
        but, say, a proxy's page. Raises ApiError for a final refusal, else a ProvisionerError.
        """
        return repeated(
            lambda left_s: self._once_with(want, service, region, operation, left_s, **parameters),
            ERRORS,
            deadline,
            f"{_NAMES[service]} in {region} did not answer in time",
            CREDENTIALS_HINT,
        )

    def _once_with(
        self, want: str, service: str, region: str, operation: str, timeout_s: float, **parameters: Any
    ) -> dict[str, Any]:
        answer = self.once(service, region, operation, timeout_s, **parameters)
        if want and want not in answer:
            raise NoAnswerError(f"{_NAMES[service]} in {region} answered {operation} without {want}")
        return answer

    def pages(
        self, service: str, region: str, operation: str, deadline: Deadline, key: str, **parameters: Any
    ) -> Iterator[dict[str, Any]]:
        """Yield the items under `key` of all pages. Raises as `ask`."""
        token = ""
        for _ in range(MAX_PAGES):
            more = {"NextToken": token} if token else {}
            answer = self.ask(service, region, operation, deadline, want=key, **parameters, **more)
            yield from answer[key]
            token = answer.get("NextToken") or ""
            if not token:
                return
        raise ProvisionerError(f"{_NAMES[service]} in {region} has more than {MAX_PAGES} pages of {key}")

    def _client(self, service: str, region: str, timeout_s: float) -> Any:
        limit_s = _limit_s(timeout_s)
        with self._lock:
            if (known := self._clients.get((service, region, limit_s))) is not None:
                return known
            from botocore.config import Config

            if self._session is None:
                self._session = _session(self._settings.profile)
            config = Config(
                connect_timeout=limit_s / 4,
                read_timeout=limit_s * 3 / 4,
                retries={"mode": "standard", "total_max_attempts": 1},
                max_pool_connections=_POOL,
            )
            made = self._session.client(
                service,
                region_name=region,
                endpoint_url=self._settings.endpoint or None,
                verify=self._settings.endpoint_ca or None,
                config=config,
            )
            self._clients[service, region, limit_s] = made
            return made


@functools.cache
def _models() -> Any:
    """AWS's service models: megabytes of JSON, parsed once for all sessions of this process."""
    from botocore.loaders import create_loader

    return create_loader()


def _session(profile: str) -> Any:
    import botocore.session
    from boto3.session import Session

    core = botocore.session.Session(profile=profile or None)
    core.register_component("data_loader", _models())
    return Session(botocore_session=core)


def _limit_s(timeout_s: float) -> float:
    """Return the largest power of two that fits: each time limit needs a client of its own, so there are few limits."""
    limit_s = _MAX_S
    while limit_s > max(timeout_s, SHORTEST_S):
        limit_s /= 2
    return limit_s
