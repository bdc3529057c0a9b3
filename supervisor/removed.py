"""What spotsup had once, and what to do instead: said where somebody still asks for it."""

from __future__ import annotations

from collections.abc import Mapping

_EARLY_STOP = (
    "to end a sweep's worst jobs early, use Optuna with a pruner: `spotsup.optuna.optimize` of spotsup-client[optuna]"
)

_EMAIL = "for e-mail, let a signed webhook (`[[alerts.webhook]]`) or Alertmanager send it: docs/alerts.md says how"

# By the name of a command, an option, a key or an argument.
INSTEAD: Mapping[str, str] = {
    "--early-stop": _EARLY_STOP,
    "alerts.email": _EMAIL,
    "early_stop": _EARLY_STOP,
}
