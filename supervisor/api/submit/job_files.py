"""What a job file is checked, quoted and placed by, before anything of it is stored."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from supervisor.api.place_order import prefers_the_cheapest, with_places
from supervisor.api.quote import Quote, check_admissible, check_prices_known, endless_cost
from supervisor.api.submit.checked import Checked, LastChecked
from supervisor.api.submit.supported import check_supported
from supervisor.deadlines import finish_by_at
from supervisor.errors import CommandRefusedError
from supervisor.journal.journal import DayKey, Journal
from supervisor.market.admission import QueueRules
from supervisor.pool_days import PoolDay
from supervisor.runtime.clock import Clock
from supervisor.sealed import missing_because
from supervisor.spec import JobSpec, parse_spec
from supervisor.starting_time import starts_at


class JobFiles:
    """What this daemon says of a job file. All of its methods raise UsageError, and CommandRefusedError for what cannot
    run here."""

    def __init__(
        self,
        *,
        journal: Journal,
        clock: Clock,
        clouds: Sequence[str],
        hosted: Collection[str],
        quote: Callable[[JobSpec], Quote] | None,
        queue: QueueRules,
        budgeted: bool,
    ) -> None:
        """See `Service`."""
        self._journal = journal
        self._clock = clock
        self._clouds = tuple(clouds)
        self._hosted = frozenset(hosted)
        self._quote = quote
        self._queue = queue
        self._budgeted = budgeted
        self._last = LastChecked()

    def parse(self, value: Any) -> JobSpec:
        """Return a job file's content, with its cloud."""
        spec = parse_spec(self._with_cloud(value))
        if not spec.placement.cloud:
            *first, last = self._clouds
            raise CommandRefusedError(
                "the daemon has several clouds, and the job names none: set `placement.cloud` (--cloud) to "
                f"{', '.join(first)} or {last}"
            )
        check_supported(spec, self._clouds, self._hosted)
        return spec

    def _with_cloud(self, value: Any) -> Any:
        """Return the job file, with the only cloud where it names none."""
        placement = value.get("placement", {}) if isinstance(value, dict) else None
        if len(self._clouds) != 1 or not isinstance(placement, dict) or placement.get("cloud"):
            return value
        return {**value, "placement": {**placement, "cloud": self._clouds[0]}}

    def admit(self, value: Any, owner: str) -> Checked:
        """Return a user's submission as it was checked a moment ago; else checked now, without a quote."""
        now = self._clock.now()
        return self._last.find(owner, value, now) or self.admit_anew(value, owner)

    def admit_anew(self, value: Any, owner: str) -> Checked:
        """Return a user's submission as it is checked now, without a quote."""
        spec, now = self.parse(value), self._clock.now()
        finish_by_at(spec.finish_by, spec.work, starts_at(spec.start_after, spec.schedule, now), now)
        check_admissible(spec, owner, self._queue)
        self.check_secrets(spec, owner)
        return Checked(owner, value, spec, None, now)

    def quoted(self, checked: Checked) -> Checked:
        """Ask the clouds what they offer for it, and remember it. Raises CommandRefusedError if they say nothing."""
        quote = self._quoted(checked.spec)
        if quote is not None:
            check_prices_known(quote, self._queue)
        found = replace(checked, quote=quote, at=self._clock.now())
        self._last.keep(found)
        return found

    def check_secrets(self, spec: JobSpec, owner: str) -> None:
        """Raise CommandRefusedError if the owner has not all secrets that a job names."""
        known = {each.name for each, _ in self._journal.secrets(owner)} if spec.secrets else set()
        if missing := [name for name in spec.secrets if name not in known]:
            raise CommandRefusedError(f"job {spec.name} is refused: {missing_because(owner, missing)}")

    def plan(self, value: Any) -> tuple[JobSpec, Quote]:
        """Return what the cloud would be asked for, whether or not the job's name is free."""
        spec = self.parse(value)
        quote = self._quoted(spec)
        if quote is None:
            raise CommandRefusedError("this daemon cannot ask its clouds for offers")
        return spec, quote

    def _quoted(self, spec: JobSpec) -> Quote | None:
        """Return what the cloud offers, and say where nothing ends what the job costs; None where no cloud is asked."""
        if self._quote is None:
            return None
        quote = self._quote(spec)
        endless = endless_cost(spec, quote) if self.is_rented(spec) and not self._budgeted else ""
        return replace(quote, warnings=(*quote.warnings, endless)) if endless else quote

    def is_rented(self, spec: JobSpec) -> bool:
        """True if the job's machines cost money: they are not processes of this computer."""
        return any(cloud not in self._hosted for cloud in spec.clouds)

    def recorded(self, value: Any) -> tuple[JobSpec, Quote, Mapping[DayKey, PoolDay | None]]:
        """Return what `plan` does, and all that is kept of pools. Raises JournalUnavailableError, too."""
        spec, quote = self.plan(value)
        return with_places(spec, quote.places), quote, self._journal.pool_days()

    def placed(self, checked: Checked) -> tuple[JobSpec, str]:
        """Return the job with its places in order, and that order for people. Raises CommandRefusedError without the
        prices that it needs."""
        spec, quote = checked.spec, checked.quote
        needs_prices = spec.limits.of_money or self._queue.of_money or self._budgeted or prefers_the_cheapest(spec)
        if not needs_prices or self._quote is None:
            return spec, ""
        if quote is None:
            quote = self._quote(spec)
            check_prices_known(quote, self._queue)
        order = f"; its places by price: {', '.join(map(str, quote.places))}" if quote.places else ""
        return with_places(spec, quote.places), order
