"""The offers of a job's markets, in the order in which the job wants them."""

from __future__ import annotations

from collections.abc import Sequence

from provisioners.base import DeniedError, Offer, OfferQuery, Provisioner, ProvisionerError, UnreachableError


def offers_in_order(provisioner: Provisioner, queries: Sequence[OfferQuery], timeout_s: float) -> tuple[Offer, ...]:
    """What fits the first query, cheapest first, then what fits the second, and so on.

    Raises UnreachableError or DeniedError where any cannot be asked: a dearer market is no answer to a lost call. Where
    none has anything, raises the ProvisionerError of the first that says why, or returns nothing.
    """
    found: list[Offer] = []
    why: list[ProvisionerError] = []
    for query in queries:
        try:
            found += provisioner.offers(query, timeout_s / len(queries))
        except (UnreachableError, DeniedError):
            raise
        except ProvisionerError as error:
            why.append(error)
    if why and not found:
        raise why[0]
    return tuple(found)
