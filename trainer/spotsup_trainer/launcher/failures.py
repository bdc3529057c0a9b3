"""What a worker that failed left behind, in one text."""

from __future__ import annotations

import signal

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

_MESSAGE_CHARS = 2000


def message_of(failure: ProcessFailure, memory_kills: int | None = None) -> str:
    """Return the worker's traceback if it left one; of a long one, the end. `memory_kills`: how many processes the
    kernel has ended for memory since the workers began; None: unknown."""
    message = _whole_message(failure)[-_MESSAGE_CHARS:]
    if failure.exitcode != -signal.SIGKILL or memory_kills is None:
        return message
    if memory_kills:
        return f"{message}, as memory ran out: the kernel has ended processes for it here ({memory_kills})"
    return f"{message}, and not by the kernel for memory"


def _whole_message(failure: ProcessFailure) -> str:
    message = failure.message
    if isinstance(message, dict):
        extra = message.get("extraInfo", {})
        message = extra.get("py_callstack") or message.get("message", "")
    if failure.exitcode < 0:
        return f"killed by {failure.signal_name()}" if "received by PID" in str(message) else str(message)
    if "torch.org/docs" in str(message):
        return "it left no traceback; see its log"
    return str(message)
