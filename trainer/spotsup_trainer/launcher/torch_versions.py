"""What torch's launcher did not have in every version that ours runs with: 2.6 and newer.

When each name came, by torch's own sources; `make test-torch` runs the launcher on all of them.

| since | name |
|---|---|
| 2.8 | event_log_handler of LaunchConfig and WorkerSpec |
| 2.9 | numa_options of LaunchConfig; torch.numa |
| 2.10 | duplicate_stdout_filters, duplicate_stderr_filters (of PContext too), virtual_local_rank, signals_to_handle; \
LocalElasticAgent._set_local_rank_env; PContext._tail_logs |
| 2.11 | torch.numa.binding._maybe_wrap_with_numa_binding |
| 2.12 | shutdown_timeout of LocalElasticAgent |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# As torchrun's own default of --signals-to-handle.
SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"

# Fields of LaunchConfig that WorkerSpec has too, under the same name, from the same version on.
OF_WORKER_SPEC = (
    "event_log_handler",
    "duplicate_stdout_filters",
    "duplicate_stderr_filters",
    "virtual_local_rank",
)


# The same of WorkerSpec and PContext.
OF_PCONTEXT = ("duplicate_stdout_filters", "duplicate_stderr_filters")


def fields_of(thing: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the attributes among `names` that this torch's `thing` has."""
    return {name: getattr(thing, name) for name in names if hasattr(thing, name)}


def tails_of(context: Any) -> Sequence[Any]:
    """Return what copies the workers' output to the launcher's, of a PContext."""
    found: Sequence[Any] = getattr(context, "_tail_logs", None) or ()
    return found if hasattr(context, "_tail_logs") else (context._stdout_tail, context._stderr_tail)  # noqa: SLF001
