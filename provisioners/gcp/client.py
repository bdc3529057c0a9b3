"""Calls to Compute Engine through google-cloud-compute: bounded in time; errors differ by whether the call can have had
an effect.

The SDK's own retries are off: it would repeat a listing for ten minutes, whatever its time limit. Its pollers are not
used: they ignore a client's endpoint. An operation is read like any other resource.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

from provisioners.base import ProvisionerError, UnreachableError
from provisioners.calls import SHORTEST_S, Deadline, NoAnswerError, NoCredentialsError, NotSentError, one_line, repeated
from provisioners.codes import ApiError
from provisioners.gcp.errors import ERRORS, GcpErrorReply
from provisioners.gcp.settings import GcpSettings

MAX_PAGES = 100
_MAX_S = 32.0
_POOL = 32
_CLOCKS_AGREE_S = 15.0  # dates are in whole seconds, and answers take time
_CLIENTS = {
    "instances": "InstancesClient",
    "zoneOperations": "ZoneOperationsClient",
    "globalOperations": "GlobalOperationsClient",
    "disks": "DisksClient",
    "machineTypes": "MachineTypesClient",
    "acceleratorTypes": "AcceleratorTypesClient",
    "regions": "RegionsClient",
    "projects": "ProjectsClient",
    "images": "ImagesClient",
    "subnetworks": "SubnetworksClient",
    "firewalls": "FirewallsClient",
    "advice": "AdviceClient",
    "reservations": "ReservationsClient",
}


class Limits:
    """A time limit for requests, split between connecting and reading. Given one number, requests would wait that long
    for each of the two.
    """

    def __init__(self, timeout_s: float) -> None:
        limit_s = min(max(timeout_s, SHORTEST_S), _MAX_S)
        self._limits = (limit_s / 4, limit_s * 3 / 4)

    def __call__(self, call: Any) -> Any:
        def bounded(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **{**kwargs, "timeout": self._limits})

        return bounded


class Gcp:
    """The SDK's clients, created on first use and kept. Thread-safe. `ahead_s`: how far Google's clock is ahead, by the
    last answer; 0 where no difference can be measured.
    """

    def __init__(self, settings: GcpSettings) -> None:
        try:
            from google.cloud import compute_v1
        except ImportError as error:
            raise ProvisionerError(
                "the SDK for Compute Engine (google-cloud-compute) is not installed: pip install 'spotsup[gcp]', or "
                "take [gcp] out of the configuration"
            ) from error
        self.types: Any = compute_v1
        self.project = settings.project
        self.ahead_s = 0.0
        self._settings = settings
        self._lock = threading.Lock()
        self._bearer: Any = None
        self._clients: dict[str, Any] = {}

    def once(self, service: str, method: str, timeout_s: float, place: str = "", **parameters: Any) -> Any:
        """Make one call, in one attempt; of a listing, one page. `place`: where, for people. Raises ApiError,
        NotSentError, NoAnswerError, NoCredentialsError.
        """
        import requests
        from google.api_core import exceptions as api
        from google.protobuf.json_format import ParseError

        where = f"Compute Engine ({place or self.project})"
        deadline = Deadline(timeout_s)
        client = self._client(service, deadline, where)
        try:
            answer = getattr(client, method)(
                request={"project": self.project, **parameters}, retry=None, timeout=Limits(deadline.left_s())
            )
            # A pager has already read its first page; it would read the next one without our limits.
            return next(iter(answer.pages)) if hasattr(answer, "pages") else answer
        except api.GoogleAPICallError as error:
            raise ApiError(_error_reply(error, place or self.project)) from error
        except (TypeError, ValueError) as error:
            if isinstance(error, ParseError | requests.exceptions.RequestException):
                raise NoAnswerError(f"{where} gave no usable answer: {first_line(error)}") from error
            raise ProvisionerError(f"{where}: {first_line(error)}") from error
        except ParseError as error:
            raise NoAnswerError(f"{where} gave no usable answer: {first_line(error)}") from error
        except requests.exceptions.ConnectionError as error:
            if never_left(error):
                raise NotSentError(f"{where} cannot be reached: {first_line(error)}") from error
            raise NoAnswerError(f"{where} closed the connection: {first_line(error)}") from error
        except requests.exceptions.RequestException as error:
            raise NoAnswerError(f"{where} gave no usable answer: {first_line(error)}") from error
        except Exception as error:
            raise_of_auth(error, where)
            raise

    def ask(
        self, service: str, method: str, deadline: Deadline, place: str = "", *, kind: str = "", **parameters: Any
    ) -> Any:
        """Make one call that may be repeated. `kind`: the `kind` of every such answer; without it, it
        is a proxy's page, say. Raises ApiError for a final refusal, else a
        ProvisionerError.
        """
        return repeated(
            lambda left_s: self._once_of(kind, service, method, left_s, place, **parameters),
            ERRORS,
            deadline,
            f"Compute Engine ({place or self.project}) did not answer in time",
        )

    def _once_of(self, kind: str, service: str, method: str, timeout_s: float, place: str, **parameters: Any) -> Any:
        answer = self.once(service, method, timeout_s, place, **parameters)
        if kind and answer.kind != kind:
            raise NoAnswerError(f"Compute Engine ({place or self.project}) answered without kind {kind}")
        return answer

    def pages(self, service: str, method: str, deadline: Deadline, kind: str, **parameters: Any) -> Iterator[Any]:
        """Yield all pages of a listing. Raises as `ask`."""
        token = ""
        for _ in range(MAX_PAGES):
            more = {"page_token": token} if token else {}
            answer = self.ask(service, method, deadline, kind=kind, **parameters, **more)
            yield answer
            token = answer.next_page_token
            if not token:
                return
        raise ProvisionerError(f"Compute Engine ({self.project}) has more than {MAX_PAGES} pages of {service}")

    def aggregated(
        self, service: str, field: str, deadline: Deadline, silent: dict[str, str] | None = None, **parameters: Any
    ) -> Iterator[tuple[str, Any]]:
        """(zone, item) of the whole project's listing. `silent`, and what is raised: as of `items_of`."""
        kind = f"compute#{field_kind(service)}AggregatedList"
        for page in self.pages(service, "aggregated_list", deadline, kind, **parameters):
            yield from items_of(page, field, self._settings.regions, silent)

    def _client(self, service: str, deadline: Deadline, where: str) -> Any:
        """Return a client with a valid token."""
        with self._lock:
            if self._bearer is None:
                from provisioners.gcp.auth import Bearer

                self._bearer = Bearer()
        try:
            self._bearer.renew(deadline.left_s())
        except Exception as error:
            raise_of_auth(error, where)
            raise
        with self._lock:
            if service not in self._clients:
                options = {"api_endpoint": self._settings.endpoint} if self._settings.endpoint else {}
                made = getattr(self.types, _CLIENTS[service])(credentials=self._bearer, client_options=options)
                self._prepare(made.transport._session)  # noqa: SLF001 - the SDK has no public way
                self._clients[service] = made
            return self._clients[service]

    def _prepare(self, session: Any) -> None:
        """Set the size of the connection pool and the trusted certificate, and read Google's clock from each answer."""
        from requests.adapters import HTTPAdapter

        ca, read_clock = self._settings.endpoint_ca, self._read_clock

        class Adapter(HTTPAdapter):
            """REQUESTS_CA_BUNDLE in the environment would override a session's own `verify`."""

            def send(self, request: Any, *args: Any, **given: Any) -> Any:
                answer = super().send(request, *args, **{**given, **({"verify": ca} if ca else {})})
                read_clock(answer.headers.get("Date", ""))
                return answer

        for scheme in ("http://", "https://"):
            session.mount(scheme, Adapter(pool_maxsize=_POOL))

    def _read_clock(self, date: str) -> None:
        try:
            ahead_s = parsedate_to_datetime(date).timestamp() - time.time()
        except ValueError:
            return
        self.ahead_s = ahead_s if abs(ahead_s) > _CLOCKS_AGREE_S else 0.0


def field_kind(service: str) -> str:
    """instances -> instance, as the answers' `kind` has it."""
    return {"globalOperations": "operation"}.get(service, service.removesuffix("s"))


def items_of(
    page: Any, field: str, regions: Sequence[str], silent: dict[str, str] | None = None
) -> Iterator[tuple[str, Any]]:
    """(zone, item) of one page of an aggregated listing, for items in zones.

    The listing covers the whole world, and warns of each zone that Google could not read ("UNREACHABLE"). One that is
    not in `regions` is no gap. One that is gets into `silent`, under its region; without it, raises UnreachableError.
    """
    for scope, listed in page.items.items():
        place = scope.rpartition("/")[2]
        region = place if place in regions else place.rpartition("-")[0]
        if listed.warning.code == "UNREACHABLE" and region in regions:
            why = f"a Compute Engine listing lacks {scope}: {first_line(listed.warning.message)}"
            if silent is None:
                raise UnreachableError(why)
            silent[region] = why
        if scope.startswith("zones/"):
            for item in getattr(listed, field):
                yield scope.removeprefix("zones/"), item


def _error_reply(error: Any, place: str) -> GcpErrorReply:
    """Google's first reason; the HTTP status where a proxy answered."""
    detail = error.errors[0] if error.errors and isinstance(error.errors[0], dict) else {}
    code = str(detail.get("reason") or f"HTTP{int(error.code or 0)}")
    return GcpErrorReply(place, code, str(detail.get("message") or error.message or ""))


def never_left(error: Exception) -> bool:
    """True if a connection error came before the request was sent."""
    import requests
    from urllib3 import exceptions as pool

    if isinstance(error, requests.exceptions.ConnectTimeout | requests.exceptions.SSLError):
        return True
    cause = error.args[0] if error.args else None
    reason = getattr(cause, "reason", None)
    return isinstance(reason, pool.NewConnectionError | pool.ConnectTimeoutError | pool.SSLError | pool.ProxyError)


def raise_of_auth(error: Exception, where: str) -> None:
    """Raise our error for one of google-auth; return for any other."""
    from google.auth import exceptions as auth

    if isinstance(error, auth.TransportError) or getattr(error, "retryable", False):
        raise NotSentError(f"{where}: Google issued no access token: {first_line(error)}") from error
    if isinstance(error, auth.DefaultCredentialsError):
        raise NoCredentialsError(
            "no Google credentials found: run gcloud auth application-default login as the daemon's user, or let "
            "GOOGLE_APPLICATION_CREDENTIALS name a service account's key file"
        ) from error
    if isinstance(error, auth.GoogleAuthError) and "reasonable timeframe" in str(error):
        raise NoCredentialsError(
            f"Google rejects the signature of the daemon's credentials: {first_line(error)}; set this "
            "computer's clock: it differs from Google's by minutes"
        ) from error
    if isinstance(error, auth.GoogleAuthError):
        raise NoCredentialsError(
            f"Google rejects the daemon's credentials: {first_line(error)}; renew them (gcloud auth "
            "application-default login, or a new key of the service account)"
        ) from error


def first_line(error: object) -> str:
    """Return an error in one line. google-auth's errors have the whole answer as a second argument."""
    first = error.args[0] if isinstance(error, Exception) and len(error.args) > 1 else error
    return one_line(str(first)).rstrip(".") if str(first).strip() else type(error).__name__
