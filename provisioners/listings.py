"""Calls to several regions, of which some may not answer: what the others have is known all the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from provisioners.base import Instance, InstanceState, PartialListingError, ProvisionerError, UnreachableError

Answer = TypeVar("Answer")
_THREADS = 16


def in_regions(regions: Sequence[str], ask: Callable[[str], list[Instance]]) -> list[Instance]:
    """Return the machines of all regions. Raises PartialListingError where some do not answer, and the first one's
    error where none does."""
    answers, errors = asked_of(regions, ask)
    found = [machine for each in answers.values() for machine in each]
    return complete(found, {region: str(error) for region, error in errors.items()})


def of_those_that_answer(regions: Sequence[str], ask: Callable[[str], Answer]) -> list[Answer]:
    """Return the answers of all regions but those that cannot be reached. Raises the first other error; where none can
    be reached, why."""
    answers, errors = asked_of(regions, ask)
    for error in errors.values():
        if not isinstance(error, UnreachableError):
            raise error
    return list(answers.values())


def asked_of(
    regions: Sequence[str], ask: Callable[[str], Answer]
) -> tuple[dict[str, Answer], dict[str, ProvisionerError]]:
    """Return the answers and the errors, by region, all asked side by side: one that is slow takes no time from the
    others. Raises the first one's error where none answers."""
    answers, errors = {}, {}
    with ThreadPoolExecutor(min(max(1, len(regions)), _THREADS)) as pool:
        pending = {region: pool.submit(ask, region) for region in regions}
        for region, each in pending.items():
            try:
                answers[region] = each.result()
            except ProvisionerError as error:
                errors[region] = error
    if errors and not answers:
        raise next(iter(errors.values()))
    return answers, errors


def complete(found: Sequence[Instance], silent: Mapping[str, str]) -> list[Instance]:
    """Return the machines. Raises PartialListingError where some regions do not answer: `silent` says why, by
    region."""
    if silent:
        raise PartialListingError(found, silent)
    return list(found)


def one_of(listed: Callable[[], Sequence[Instance]], is_wanted: Callable[[Instance], bool]) -> Instance | None:
    """Return the wanted machine of a listing; rather one that has not ended. Where some regions do not answer and the
    others do not have it, raises PartialListingError: it may be there."""
    try:
        found, silent = listed(), None
    except PartialListingError as error:
        found, silent = error.found, error
    mine = [each for each in found if is_wanted(each)]
    if silent is not None and not mine:
        raise silent
    alive = [each for each in mine if each.state is not InstanceState.TERMINATED]
    return next(iter(alive or mine), None)
