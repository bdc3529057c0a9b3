"""Several `resources` in a job file: how they are read, asked for, and named."""

from __future__ import annotations

from typing import Any

import pytest

from provisioners.base import Market
from supervisor.errors import UsageError
from supervisor.job_keys import set_key
from supervisor.spec import JobSpec, parse_spec

BASE = {"name": "job", "nodes": 2, "run": "train.py"}
H100, A100 = {"gpu": "H100", "gpus_per_node": 8}, {"gpu": "A100", "gpus_per_node": 4, "speed": 0.4}


def test_a_mapping_is_a_list_of_one() -> None:
    assert parse_spec({**BASE, "resources": H100}) == parse_spec({**BASE, "resources": [H100]})
    assert parse_spec({**BASE, "resources": H100}).kinds == ()


def test_alternatives_are_asked_for_in_order_of_each_market() -> None:
    spec = parse_spec({**BASE, "resources": [H100, A100], "market": "spot-then-on-demand"})
    asked = [(query.market, query.alternative, query.gpu) for query in spec.offer_queries]
    spot, bought = Market.SPOT, Market.ON_DEMAND
    assert asked == [(spot, 0, "H100"), (spot, 1, "A100"), (bought, 0, "H100"), (bought, 1, "A100")]
    assert spec.kinds == ("8 × H100", "4 × A100")


def test_a_spec_with_alternatives_is_read_back_from_the_journal_as_it_was() -> None:
    spec = parse_spec({**BASE, "resources": [{**H100, "instance_types": ["p5.48xlarge"]}, A100], "prefer": "cheapest"})
    assert JobSpec.model_validate_json(spec.model_dump_json(), strict=True) == spec


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ([], "`resources`: it has 0 alternatives, and can have 1 to 4"),
        ([{"gpus_per_node": number} for number in range(5)], "it has 5 alternatives"),
        ([H100, dict(H100)], "two alternatives ask for the same, 8 × H100: leave one out"),
        ([H100, {"gpuu": "A100"}], "unknown key `resources.1.gpuu`; known here: gpu, gpus_per_node"),
        ([H100, {"gpu": "A100"}], "`resources.1`: gpu is A100, but gpus_per_node is not given"),
        ({"gpuu": "A100"}, "unknown key `resources.gpuu`; known here: gpu, gpus_per_node"),
        ([H100, {**A100, "speed": 0}], "`resources.1.speed` is 0"),
    ],
)
def test_a_wrong_list_is_refused_with_one_sentence(resources: Any, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_spec({**BASE, "resources": resources})
    assert message in str(error.value)


def test_an_option_changes_no_single_one_of_several_alternatives() -> None:
    spec: dict[str, Any] = {**BASE, "resources": [H100, A100]}
    with pytest.raises(UsageError, match="a list of alternatives, and an option would change one of them"):
        set_key(spec, "resources.gpu", "V100")


def test_an_option_changes_no_single_one_of_several_places() -> None:
    spec: dict[str, Any] = {**BASE, "placement": [{"cloud": "aws"}, {"cloud": "gcp"}]}
    with pytest.raises(UsageError, match="`placement` is a list of places, and an option would change one of them"):
        set_key(spec, "placement.cloud", "azure")
