"""The offers for a job, in the order in which it prefers their markets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from provisioners.base import DeniedError, Offer, OfferQuery, Provisioner, ProvisionerError, UnreachableError
from supervisor.market.capacity import source_of
from supervisor.market.prices import priced


def offers_in_order(
    provisioner: Provisioner,
    queries: Sequence[OfferQuery],
    timeout_s: float,
    prices: Mapping[str, float] = MappingProxyType({}),
) -> tuple[Offer, ...]:
    """Return the offers for the first query, cheapest first, then those for the second, and so on. `prices`: `[prices]`
    of the configuration. What several queries find is of the first one's alternative.

    Raises UnreachableError or DeniedError if any query fails so: a lost call must not lead to a dearer market. If no
    query has an offer, raises the first ProvisionerError, or returns nothing if there is none.
    """
    found: dict[tuple[str, ...], Offer] = {}
    errors: list[ProvisionerError] = []
    for query in queries:
        try:
            offers = priced(provisioner.offers(query, timeout_s / len(queries)), prices)
        except (UnreachableError, DeniedError):
            raise
        except ProvisionerError as error:
            errors.append(error)
            continue
        for each in offers:
            found.setdefault(source_of(each), replace(each, alternative=query.alternative))
    if errors and not found:
        raise errors[0]
    return tuple(found.values())
