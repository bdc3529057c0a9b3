"""How a call to a cloud can fail, by whether it can have had an effect; and a time limit that calls share."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from provisioners.base import (
    Denied,
    DeniedError,
    Fatal,
    LaunchOutcome,
    LaunchRequest,
    ProvisionerError,
    Scope,
    Transient,
    Unknown,
    UnreachableError,
)
from provisioners.codes import CREDENTIALS_MEMORY_S, PERMISSION_MEMORY_S, ApiError, ErrorTable

MAX_ATTEMPTS = 4
SHORTEST_S = 0.1
_BACKOFF_S = (0.2, 0.5, 1.0)

Answer = TypeVar("Answer")


class NotSentError(Exception):
    """The request was not sent: it had no effect."""


class NoAnswerError(Exception):
    """The request was sent and there is no usable answer: it may have had any effect."""


class NoCredentialsError(Exception):
    """There are no usable credentials."""


class Deadline:
    """A time limit that several calls share."""

    def __init__(self, timeout_s: float) -> None:
        self._at = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Seconds until then; negative after."""
        return self._at - time.monotonic()


def repeated(
    once: Callable[[float], Answer], errors: ErrorTable, deadline: Deadline, late: str, hint: str = ""
) -> Answer:
    """Make an idempotent call, repeated a few times. `once` gets its time limit; `late`: the message where none is
    left; `hint`: what to do about missing credentials. Raises ApiError for a final refusal, else a ProvisionerError.
    """
    for attempt in range(MAX_ATTEMPTS):
        last = attempt == MAX_ATTEMPTS - 1
        wait_s = 0.0 if last else _BACKOFF_S[attempt] * random.uniform(0.5, 1.5)  # noqa: S311 - jitter
        if (left_s := deadline.left_s()) < SHORTEST_S:
            raise UnreachableError(late)
        try:
            return once(left_s)
        except ApiError as error:
            if (row := errors.denial(error.reply)) is not None:
                raise DeniedError(f"{error}; {row.remedy}", row.scope or Scope.GLOBAL) from error
            if not errors.is_retryable(error.reply):
                raise
            wait_s = max(wait_s, error.reply.retry_after_s)
            if last or deadline.left_s() < wait_s + SHORTEST_S:
                raise UnreachableError(f"{error}, {attempt + 1} times") from error
        except NoCredentialsError as error:
            raise DeniedError(f"{error}{hint}") from error
        except NotSentError as error:
            raise UnreachableError(str(error)) from error
        except NoAnswerError as error:
            if last or deadline.left_s() < wait_s + SHORTEST_S:
                raise UnreachableError(str(error)) from error
        time.sleep(wait_s)
    raise AssertionError("the last attempt returns or raises")


def launched(
    request: LaunchRequest,
    cloud: str,
    regions: Sequence[str],
    errors: ErrorTable,
    launch: Callable[[str], LaunchOutcome],
    hint: str = "",
) -> LaunchOutcome:
    """Return the outcome of `launch`, which makes the call that launches, once, and gets the place for people. `hint`:
    as of `repeated`."""
    offer = request.offer
    if offer.region not in regions:
        return Fatal(f"{offer.region} is not one of {cloud}.regions ({', '.join(regions)})")
    where = f"{offer.zone}, {offer.instance_type}, {offer.market}"
    try:
        return launch(where)
    except ApiError as error:
        return errors.launch_outcome(error.reply, where)
    except (NotSentError, UnreachableError) as error:
        return Transient(str(error))
    except NoAnswerError as error:
        return Unknown(str(error))
    except NoCredentialsError as error:
        return Denied(Scope.GLOBAL, CREDENTIALS_MEMORY_S, f"{error}{hint}")
    except DeniedError as error:
        memory_s = CREDENTIALS_MEMORY_S if error.scope is Scope.GLOBAL else PERMISSION_MEMORY_S
        return Denied(error.scope, memory_s, str(error))
    except ProvisionerError as error:
        return Fatal(str(error))


def one_line(error: object) -> str:
    """Return an error's text in one line of at most 300 characters; its type where it has none."""
    return " ".join(str(error).split())[:300] or type(error).__name__
