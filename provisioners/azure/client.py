"""Calls to Azure through its SDK: bounded in time; errors differ by whether the call can have had an effect.

The SDK's pipeline is built here from its own parts, without those that repeat a request or sleep: retries, redirects,
and the policy that registers resource providers. Its pollers are never used: they wait 30 s between polls.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from provisioners.azure.errors import ERRORS, AzureErrorReply
from provisioners.azure.settings import AzureSettings
from provisioners.azure.tokens import PUBLIC_CLOUD, SCOPE, Tokens, trust
from provisioners.base import ProvisionerError, UnreachableError
from provisioners.calls import SHORTEST_S, Deadline, NoAnswerError, NotSentError, one_line, repeated
from provisioners.codes import ApiError

MAX_PAGES = 200
CREDENTIALS_HINT = "; set them up for the daemon's user"
_MAX_RETRY_AFTER_S = 300.0
_CLOCKS_AGREE_S = 15.0  # dates are in whole seconds, and answers take time


class Azure:
    """The SDK's clients for one subscription. Thread-safe. `ahead_s`: how far Azure's clock is ahead, by the last
    answer; 0 where no difference can be measured.
    """

    def __init__(self, settings: AzureSettings) -> None:
        try:
            import azure.identity
            import azure.mgmt.compute
            import azure.mgmt.network  # noqa: F401
        except ImportError as error:
            raise ProvisionerError(
                "the SDK for Azure (azure-identity, azure-mgmt-compute, azure-mgmt-network) is not installed: "
                "pip install 'spotsup[azure]', or take [azure] out of the configuration"
            ) from error
        # What the SDK would log (a missing token, an incomplete answer) is in our own errors.
        logging.getLogger("azure").setLevel(logging.ERROR)
        self._settings = settings
        self._lock = threading.Lock()
        self._tokens = Tokens(settings)
        self._clients: dict[str, Any] = {}
        self.ahead_s = 0.0

    @property
    def group(self) -> str:
        """Return the resource group."""
        return self._settings.resource_group

    def once(self, what: str, ask: Callable[[Clients, Mapping[str, Any]], Any], timeout_s: float) -> Any:
        """Make one call, in one attempt: `ask` gets the clients, and keywords to pass to the SDK's method. `what` names
        the call for people. Raises ApiError, NotSentError, NoAnswerError, NoCredentialsError.
        """
        from azure.core import exceptions as sdk

        deadline = Deadline(timeout_s)
        self._tokens.ready(timeout_s)
        left_s = max(deadline.left_s(), SHORTEST_S)
        limits = {"connection_timeout": left_s / 4, "read_timeout": left_s * 3 / 4}
        try:
            return ask(Clients(self), limits)
        except (sdk.DecodeError, sdk.DeserializationError, sdk.ServiceResponseError) as error:
            raise NoAnswerError(f"Azure gave no usable answer to {what}: {one_line(error)}") from error
        except sdk.HttpResponseError as error:
            if error.status_code is None:
                raise NoAnswerError(f"Azure closed the connection during {what}: {one_line(error)}") from error
            if error.status_code == 401:
                self._tokens.forget()
            raise ApiError(_error_reply(what, error)) from error
        except sdk.ServiceRequestError as error:
            if _was_sent(error):
                raise NoAnswerError(f"Azure did not answer {what}: {one_line(error)}") from error
            raise NotSentError(f"Azure cannot be reached: {one_line(error)}") from error
        except (ValueError, KeyError, TypeError) as error:
            # The SDK's errors for JSON that is not Azure's.
            raise NoAnswerError(f"Azure gave no usable answer to {what}: {one_line(error)}") from error

    def ask(self, what: str, ask: Callable[[Clients, Mapping[str, Any]], Any], deadline: Deadline) -> Any:
        """Make one call that may be repeated. Raises ApiError for a final refusal, else a ProvisionerError."""
        return repeated(
            lambda left_s: self.once(what, ask, left_s),
            ERRORS,
            deadline,
            f"Azure did not answer {what} in time",
            CREDENTIALS_HINT,
        )

    def pages(
        self, what: str, ask: Callable[[Clients, Mapping[str, Any]], Any], deadline: Deadline
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the items of all pages of a listing. Raises as `ask`."""
        token: str | None = None
        for _ in range(MAX_PAGES):

            def page(clients: Clients, more: Mapping[str, Any], token: str | None = token) -> tuple[list[Any], Any]:
                whole: list[Any] = []
                hooked = {**more, "raw_response_hook": lambda seen: whole.append(seen.http_response.json())}
                listing = ask(clients, hooked).by_page(continuation_token=token)
                items = list(next(listing))
                # An empty page has a list, too. A proxy's page may be well-formed JSON without one.
                if not whole or not isinstance(whole[0], dict) or "value" not in whole[0]:
                    raise ValueError("the page has no list")
                return items, listing.continuation_token

            items, token = self.ask(what, page, deadline)
            yield from items
            if not token:
                return
        raise ProvisionerError(f"Azure has more than {MAX_PAGES} pages of {what}")

    def raw(self, method: str, url: str, params: Mapping[str, str], limits: Mapping[str, Any], body: Any = None) -> Any:
        """Make one request for which the SDK has no method, through its clients' public `send_request`; returns JSON.
        For use within `once` and `ask`. `url`: a path, or an address from Azure.
        """
        return self.begin(method, url, params, limits, body)[0]

    def begin(
        self, method: str, url: str, params: Mapping[str, str], limits: Mapping[str, Any], body: Any = None
    ) -> tuple[dict[str, Any], str]:
        """As `raw`, and the address of the operation that goes on at Azure; "" where none does."""
        from azure.core.exceptions import HttpResponseError
        from azure.core.rest import HttpRequest
        from azure.mgmt.core.exceptions import ARMErrorFormat

        client = self.client("compute")
        content = {} if body is None else {"json": body}
        response = client.send_request(HttpRequest(method, url, params=dict(params), **content), **limits)
        if response.status_code not in {200, 201, 202, 204}:
            raise HttpResponseError(response=response, error_format=ARMErrorFormat)
        headers = response.headers
        operation = headers.get("Azure-AsyncOperation") or headers.get("Location") or ""
        # Storage accepts an account without a word.
        if not response.content and (method == "DELETE" or response.status_code == 202):
            return {}, operation
        found = response.json()
        if not isinstance(found, dict):
            raise TypeError("the reply is not an object")
        return found, operation

    def token(self, timeout_s: float) -> str:
        """Return the access token. Raises NoCredentialsError and NotSentError."""
        self._tokens.ready(timeout_s)
        return str(self._tokens.get_token().token)

    def client(self, name: str, subscription: str = "") -> Any:
        """Return one of the SDK's clients: compute or network; of the configured subscription, or of another one."""
        key = f"{name} {subscription or self._settings.subscription}"
        with self._lock:
            if key not in self._clients:
                self._clients[key] = self._made(*key.split(" ", 1))
            return self._clients[key]

    def _read_clock(self, date: str) -> None:
        try:
            ahead_s = parsedate_to_datetime(date).timestamp() - time.time()
        except ValueError:
            return
        self.ahead_s = ahead_s if abs(ahead_s) > _CLOCKS_AGREE_S else 0.0

    def _made(self, name: str, subscription: str) -> Any:
        from azure.core.pipeline import policies
        from azure.mgmt.compute import ComputeManagementClient
        from azure.mgmt.core.policies import ARMChallengeAuthenticationPolicy, ARMHttpLoggingPolicy
        from azure.mgmt.network import NetworkManagementClient

        settings = self._settings
        kind = {"compute": ComputeManagementClient, "network": NetworkManagementClient}[name]
        return kind(
            self._tokens,
            subscription,
            base_url=settings.endpoint or PUBLIC_CLOUD,
            credential_scopes=[SCOPE],
            policies=[
                policies.RequestIdPolicy(),
                policies.HeadersPolicy(),
                policies.UserAgentPolicy(sdk_moniker="spotsup"),
                policies.ProxyPolicy(),
                policies.ContentDecodePolicy(),
                ARMChallengeAuthenticationPolicy(self._tokens, SCOPE),
                policies.CustomHookPolicy(),
                _clock_policy(self._read_clock),
                ARMHttpLoggingPolicy(),
            ],
            **trust(settings),
        )


def _clock_policy(read: Callable[[str], None]) -> Any:
    """Read Azure's clock from each answer."""
    from azure.core.pipeline.policies import SansIOHTTPPolicy

    class Clock(SansIOHTTPPolicy):  # type: ignore[misc]
        """As above."""

        def on_response(self, request: Any, response: Any) -> None:  # noqa: ARG002 - the SDK's names
            """Read the date: every answer has a date."""
            read(response.http_response.headers.get("Date") or "")

    return Clock()


class Clients:
    """The SDK's clients, as a call gets them."""

    def __init__(self, azure: Azure) -> None:
        self._azure = azure
        self.group = azure.group
        self.raw = azure.raw
        self.begin = azure.begin

    @property
    def compute(self) -> Any:
        """azure.mgmt.compute's client."""
        return self._azure.client("compute")

    def compute_of(self, subscription: str) -> Any:
        """As `compute`, for another subscription."""
        return self._azure.client("compute", subscription)

    @property
    def network(self) -> Any:
        """azure.mgmt.network's client."""
        return self._azure.client("network")


def prices(settings: AzureSettings, params: Mapping[str, str], timeout_s: float) -> dict[str, Any]:
    """Return one page of Azure's retail prices, which need no credentials. Raises UnreachableError."""
    from azure.core import PipelineClient
    from azure.core.exceptions import AzureError
    from azure.core.pipeline import policies
    from azure.core.rest import HttpRequest

    chain = [policies.UserAgentPolicy(sdk_moniker="spotsup"), policies.ProxyPolicy()]
    limits = {"connection_timeout": timeout_s / 4, "read_timeout": timeout_s * 3 / 4}
    try:
        with PipelineClient(settings.prices, policies=chain, **trust(settings)) as client:
            request = HttpRequest("GET", f"{settings.prices}/api/retail/prices", params=dict(params))
            response = client.send_request(request, **limits)
            response.raise_for_status()
            found: dict[str, Any] = response.json()
            if "Items" not in found:
                raise ValueError("the reply has no Items")
            return found
    except (AzureError, ValueError, TypeError) as error:
        raise UnreachableError(f"{settings.prices} returned no prices: {one_line(error)}") from error


def download(settings: AzureSettings, url: str, timeout_s: float) -> str:
    """Return a text at an address that contains its own key; "" where there is none yet. Raises UnreachableError, whose
    message does not have the address.
    """
    from azure.core import PipelineClient
    from azure.core.exceptions import AzureError
    from azure.core.pipeline import policies
    from azure.core.rest import HttpRequest

    limits = {"connection_timeout": timeout_s / 4, "read_timeout": timeout_s * 3 / 4}
    try:
        with PipelineClient(url, policies=[policies.ProxyPolicy()], **trust(settings)) as client:
            response = client.send_request(HttpRequest("GET", url), **limits)
            if response.status_code == 404:
                return ""
            response.raise_for_status()
            return str(response.read().decode("utf-8", errors="replace"))
    except AzureError as error:
        raise UnreachableError(f"the console's text cannot be downloaded: {type(error).__name__}") from None


def _error_reply(what: str, error: Any) -> AzureErrorReply:
    status = int(error.status_code)
    detail = getattr(error, "error", None)
    code = str(getattr(detail, "code", None) or "")
    message = str(getattr(detail, "message", None) or error.reason or "")
    if not code:
        code = "HTTP 5xx" if status >= 500 else f"HTTP {status}"
    return AzureErrorReply(f"Azure, asked for {what},", status, code, message, _retry_after_s(error))


def _retry_after_s(error: Any) -> float:
    header = (error.response.headers if error.response is not None else {}).get("Retry-After", "")
    try:
        return min(max(float(header), 0.0), _MAX_RETRY_AFTER_S)
    except ValueError:
        return 0.0


def _was_sent(error: Any) -> bool:
    """True if a fault that the SDK reports as before sending may have come after it, such as a broken connection."""
    names = set()
    seen: Any = error
    for _ in range(8):
        names |= {each.__name__ for each in type(seen).__mro__}
        inner = getattr(seen, "inner_exception", None) or seen.__cause__ or seen.__context__
        reason = next((each for each in getattr(seen, "args", ()) if isinstance(each, Exception)), None)
        reason = getattr(reason, "reason", None) or reason or inner
        if reason is None or reason is seen:
            break
        seen = reason
    before = {"NewConnectionError", "ConnectTimeoutError", "ConnectTimeout", "SSLError", "ProxyError"}
    before |= {"NameResolutionError", "MissingSchema", "InvalidURL", "SSLCertVerificationError"}
    return not names & before
