"""The offers for a job, in the order in which it prefers their markets."""

from __future__ import annotations

from collections.abc import Sequence

from provisioners.base import DeniedError, Offer, OfferQuery, Provisioner, ProvisionerError, UnreachableError


def offers_in_order(provisioner: Provisioner, queries: Sequence[OfferQuery], timeout_s: float) -> tuple[Offer, ...]:
    """The offers for the first query, cheapest first, then those for the second, and so on.

    Raises UnreachableError or DeniedError if any query fails so: a lost call must not lead to a dearer market. If no
    query has an offer, raises the first ProvisionerError, or returns nothing if there is none.
    """
    found: list[Offer] = []
    errors: list[ProvisionerError] = []
    for query in queries:
        try:
            found += provisioner.offers(query, timeout_s / len(queries))
        except (UnreachableError, DeniedError):
            raise
        except ProvisionerError as error:
            errors.append(error)
    if errors and not found:
        raise errors[0]
    return tuple(found)
