"""Tokens for Azure, fetched beforehand and in bounded time; and what clients of Azure have in common."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from provisioners.azure.settings import AzureSettings
from provisioners.calls import NoCredentialsError, NotSentError

PUBLIC_CLOUD = "https://management.azure.com"
SCOPE = f"{PUBLIC_CLOUD}/.default"
SHORTEST_S = 0.1
_RENEW_BEFORE_S = 300.0


class Tokens:
    """A credential for the SDK's clients whose token is fetched beforehand, within the call's own limit in time: the
    credentials that it might come from are asked one after the other, with time limits of their own.
    """

    def __init__(self, settings: AzureSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._credential: Any = None
        self._token: Any = None
        self._stale = False
        self._fetching: Future[Any] | None = None

    def get_token(self, *_scopes: str, **_options: Any) -> Any:
        """What the SDK's clients ask for; there is one."""
        return self._token

    def ready(self, timeout_s: float) -> None:
        """Return once there is a token that will last. Raises NoCredentialsError and NotSentError."""
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
            raise NoCredentialsError(f"there are no Azure credentials that hold: {_tried(words_of(error))}") from error
        except (ServiceRequestError, ServiceResponseError) as error:
            self._done(fetching, None)
            raise NotSentError(f"Microsoft Entra ID gives no token: {words_of(error)}") from error
        except Exception as error:
            self._done(fetching, None)
            raise NoCredentialsError(f"Azure credentials cannot be used: {words_of(error)}") from error
        self._done(fetching, token)

    def forget(self) -> None:
        """Azure does not take the token: the next call fetches another."""
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
            except BaseException as error:  # noqa: BLE001 - whoever waits gets it
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
                # At an address of one's own there is no public directory to ask which authorities there are.
                disable_instance_discovery=bool(self._settings.endpoint),
                **trust(self._settings),
            )
        return self._credential.get_token(SCOPE)


def _tried(words: str) -> str:
    """What became of each credential, without the SDK's words around it."""
    return words.partition("Attempted credentials: ")[2].partition(" To mitigate this issue")[0].rstrip(".") or words


def trust(settings: AzureSettings) -> dict[str, Any]:
    """What a transport of the SDK is told about certificates."""
    return {"connection_verify": settings.endpoint_ca} if settings.endpoint_ca else {}


def words_of(error: BaseException) -> str:
    """An error in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
