"""Tokens for Azure, fetched before a call and in bounded time; and the clients' common settings."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from provisioners.azure.settings import AzureSettings
from provisioners.calls import SHORTEST_S, NoCredentialsError, NotSentError, one_line

PUBLIC_CLOUD = "https://management.azure.com"
SCOPE = f"{PUBLIC_CLOUD}/.default"
_RENEW_BEFORE_S = 300.0


class Tokens:
    """A credential for the SDK's clients whose token is fetched before a call, within the call's time limit. The SDK
    tries several sources of credentials one after the other, each with a time limit of its own.
    """

    def __init__(self, settings: AzureSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._credential: Any = None
        self._token: Any = None
        self._stale = False
        self._fetching: Future[Any] | None = None

    def get_token(self, *_scopes: str, **_options: Any) -> Any:
        """Return the token, for the SDK's clients. There is one for all scopes."""
        return self._token

    def ready(self, timeout_s: float) -> None:
        """Return once there is a token that is valid for some minutes. Raises NoCredentialsError and NotSentError."""
        from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError, ServiceResponseError

        with self._lock:
            if self._token is not None and not self._stale and self._token.expires_on - time.time() > _RENEW_BEFORE_S:
                return
            fetching = self._fetching
            if fetching is None:
                fetching = self._fetching = self._start()
        try:
            token = fetching.result(timeout=max(timeout_s, SHORTEST_S))
        except FutureTimeoutError as error:
            raise NotSentError(f"no token for Azure within {timeout_s:.1f} s") from error
        except ClientAuthenticationError as error:
            self._done(fetching, None)
            raise NoCredentialsError(f"no valid Azure credentials found: {_attempts(one_line(error))}") from error
        except (ServiceRequestError, ServiceResponseError) as error:
            self._done(fetching, None)
            raise NotSentError(f"Microsoft Entra ID issued no token: {one_line(error)}") from error
        except Exception as error:
            self._done(fetching, None)
            raise NoCredentialsError(f"Azure credentials cannot be used: {one_line(error)}") from error
        self._done(fetching, token)

    def forget(self) -> None:
        """Azure rejected the token: the next call fetches another."""
        with self._lock:
            self._stale = True

    def _done(self, fetching: Future[Any], token: Any) -> None:
        with self._lock:
            if self._fetching is fetching:
                self._fetching = None
                if token is not None:
                    self._token, self._stale = token, False

    def _start(self) -> Future[Any]:
        made: Future[Any] = Future()

        def fetch() -> None:
            try:
                made.set_result(self._fetch())
            except BaseException as error:  # noqa: BLE001 - `ready` raises it
                made.set_exception(error)

        threading.Thread(target=fetch, name="azure-token", daemon=True).start()
        return made

    def _fetch(self) -> Any:
        from azure.identity import DefaultAzureCredential

        if self._credential is None:
            self._credential = DefaultAzureCredential(
                connection_timeout=5,
                read_timeout=10,
                retry_total=1,
                process_timeout=10,
                # A private endpoint has no public directory of authorities.
                disable_instance_discovery=bool(self._settings.endpoint),
                **trust(self._settings),
            )
        return self._credential.get_token(SCOPE)


def _attempts(text: str) -> str:
    """Return the result of each credential, without the SDK's text around it."""
    return text.partition("Attempted credentials: ")[2].partition(" To mitigate this issue")[0].rstrip(".") or text


def trust(settings: AzureSettings) -> dict[str, Any]:
    """Return the certificate settings of an SDK transport."""
    return {"connection_verify": settings.endpoint_ca} if settings.endpoint_ca else {}
