"""What spotsup had once, and what to do instead: said where somebody still asks for it."""

from __future__ import annotations

from collections.abc import Mapping

_EARLY_STOP = (
    "to end a sweep's worst jobs early, use Optuna with a pruner: `spotsup.optuna.optimize` of spotsup-client[optuna]"
)

_EMAIL = "for e-mail, let a signed webhook (`[[alerts.webhook]]`) or Alertmanager send it: docs/alerts.md says how"

_BENCH_NETWORK = "submit the example trainer/examples/all_reduce.py as a job: docs/nodes.md has its job file"

_PLOT = "`-o json` has the numbers, to be drawn by what you draw with"

_JOIN = (
    "an etcd of several hosts is etcd's own runbook, and `spotsupd init --etcd URL,URL,URL --etcd-ca FILE` takes it: "
    "docs/install.md#several-daemons"
)

# By the name of a command, an option, a key or an argument.
INSTEAD: Mapping[str, str] = {
    "--early-stop": _EARLY_STOP,
    "--etcd-host": _JOIN,
    "--join": _JOIN,
    "--plot": _PLOT,
    "alerts.email": _EMAIL,
    "bench-network": _BENCH_NETWORK,
    "early_stop": _EARLY_STOP,
    "etcd-ca": "docs/operations.md#another-ca-for-etcd has the commands that replace a CA while jobs run",
    "join-file": _JOIN,
}
