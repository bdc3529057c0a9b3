"""The catalog of GPUs and instance types: what it says, against its sources, and what is asked of it."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path

import pytest

from provisioners import registry
from provisioners.aws.types import described
from provisioners.base import OfferQuery
from provisioners.catalog import CatalogError, load_catalog
from provisioners.refreshed import merged_types

CATALOG = load_catalog()
CLOUDS = [cloud.name for cloud in registry.CLOUDS.values() if cloud.has_catalog]


def names(cloud: str, **query: object) -> list[str]:
    return [each.name for each in CATALOG.select(cloud, OfferQuery(**query))]  # type: ignore[arg-type]


def test_the_aws_table_is_what_ec2_tells() -> None:
    spec = importlib.util.find_spec("moto")
    assert spec is not None
    assert spec.origin is not None
    with gzip.open(Path(spec.origin).parent / "ec2" / "resources" / "instance_types.json.gz") as file:
        known = json.load(file)
    types, _ = merged_types(described(known.values()), CATALOG, "aws")
    assert {each.name: each for each in types} == {each.name: each for each in CATALOG.cloud("aws").types}
    for each in types:
        (gpu,) = known[each.name]["GpuInfo"]["Gpus"]
        assert abs(CATALOG.gpus[each.gpu].memory_gib - gpu["MemoryInfo"]["SizeInMiB"] / 1024) <= 4
    assert not set(CATALOG.cloud("aws").retired) & set(known)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_each_type_is_named_once_and_has_a_known_gpu(cloud: str) -> None:
    types = CATALOG.cloud(cloud).types
    assert len({each.name for each in types}) == len(types)
    assert {each.gpu for each in types} <= set(CATALOG.gpus)
    assert all(each.gpus > 0 for each in types)
    assert not set(CATALOG.cloud(cloud).retired) & {each.name for each in types}


@pytest.mark.parametrize("cloud", CLOUDS)
def test_prices_are_of_known_types_and_have_a_source_with_a_date(cloud: str) -> None:
    for prices in CATALOG.cloud(cloud).prices.values():
        assert set(prices.usd_per_hour) <= {each.name for each in CATALOG.cloud(cloud).types}
        assert "20" in prices.source


def test_a_gpu_is_found_where_it_is_rented() -> None:
    assert names("aws", gpu="T4", gpus_per_node=4) == ["g4dn.12xlarge"]
    assert names("aws", gpu="t4", gpus_per_node=8) == ["g4dn.metal"]
    assert names("aws", gpu="H100", gpus_per_node=1) == ["p5.4xlarge"]
    assert names("gcp", gpu="B200") == ["a4-highgpu-8g"]
    assert names("azure", gpu="H100", gpus_per_node=1) == ["Standard_NC40ads_H100_v5"]
    assert "g2-standard-4" in names("gcp", gpu="L4")
    assert names("gcp", gpu="V100", gpus_per_node=2) == ["n1-standard-16+v100x2"]


def test_a_family_means_all_its_sizes() -> None:
    assert names("aws", gpu="A100") == ["p4d.24xlarge", "p4de.24xlarge"]
    assert names("aws", gpu="A100-80GB") == ["p4de.24xlarge"]
    assert "g5.xlarge" not in names("azure", gpu="A10")
    with pytest.raises(CatalogError, match="A10G"):
        CATALOG.select("aws", OfferQuery(gpu="A10"))


def test_nobody_who_asks_for_one_gpu_is_offered_eight_where_one_can_be_had() -> None:
    assert {each.gpus for each in CATALOG.select("aws", OfferQuery(gpu="L4", gpus_per_node=1))} == {1}
    assert {each.gpus for each in CATALOG.select("aws", OfferQuery(gpu="L4", gpus_per_node=2))} == {4}
    assert {each.gpus for each in CATALOG.select("aws", OfferQuery(gpu="V100", gpus_per_node=1))} == {8}
    assert CATALOG.select("aws", OfferQuery(gpu="L4", gpus_per_node=9)) == ()


def test_what_is_retired_says_so_and_what_instead() -> None:
    for cloud in CLOUDS:
        with pytest.raises(CatalogError, match=r"K80: no cloud rents it any more.*T4"):
            CATALOG.select(cloud, OfferQuery(gpu="k80"))
    with pytest.raises(CatalogError, match=r"p2\.xlarge: P2 \(K80\) is gone"):
        CATALOG.select("aws", OfferQuery(instance_types=("g4dn.xlarge", "p2.xlarge")))
    with pytest.raises(CatalogError, match=r"no machine with a GPU 'H300' is known for aws; there are: T4, .*B200"):
        CATALOG.select("aws", OfferQuery(gpu="H300"))


def test_a_named_type_need_not_be_in_the_catalog() -> None:
    bare, known = CATALOG.select("aws", OfferQuery(instance_types=("g6.xlarge", "c7i.large")))
    assert (bare.name, bare.gpus, known.name, known.gpu) == ("c7i.large", 0, "g6.xlarge", "L4")
    assert names("aws", instance_types=("g6.xlarge", "g5.xlarge"), gpu="L4") == ["g6.xlarge"]


def test_gpus_before_turing_need_the_proprietary_driver() -> None:
    drivers = {each.gpu: CATALOG.driver_of(each) for cloud in CLOUDS for each in CATALOG.cloud(cloud).types}
    assert {gpu for gpu, driver in drivers.items() if driver == "proprietary"} == {"P4", "P100", "V100", "V100-32GB"}
    assert CATALOG.driver_of(CATALOG.type_of("aws", "c7i.large")) == "open"


def test_a_price_is_known_where_somebody_published_one() -> None:
    assert CATALOG.price("aws", "us-east-1", "g4dn.xlarge") == (
        0.526,
        "catalog: karpenter-provider-aws, price table generated 2026-01-19",
    )
    assert CATALOG.price("aws", "eu-central-1", "g4dn.xlarge") is None
    assert CATALOG.price("aws", "us-east-1", "p5e.48xlarge") is None


def test_a_user_adds_to_the_catalog_and_overrides_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        """
        [gpus]
        X1 = { memory_gib = 48 }
        [aws]
        types = [
            { name = "x1e.xlarge", gpu = "X1", gpus = 1, vcpus = 4, memory_gib = 32 },
            { name = "p3.2xlarge", gpu = "V100", gpus = 1 },
        ]
        [aws.prices.eu-central-1]
        source = "our contract, 2026-11"
        usd_per_hour = { "x1e.xlarge" = 2.0 }
        """
    )
    catalog = load_catalog(str(path))
    assert [each.name for each in catalog.select("aws", OfferQuery(gpu="X1"))] == ["x1e.xlarge"]
    assert [each.name for each in catalog.select("aws", OfferQuery(gpu="V100", gpus_per_node=1))] == ["p3.2xlarge"]
    assert catalog.price("aws", "eu-central-1", "x1e.xlarge") == (2.0, "catalog: our contract, 2026-11")
    assert catalog.price("aws", "us-east-1", "g4dn.xlarge") is not None


@pytest.mark.parametrize(
    ("text", "says"),
    [("[aws", "is not TOML"), ("[awx]", "awx: extra inputs"), ("gpus.X.memory_gib = 0", "memory_gib: input should be")],
)
def test_a_catalog_that_is_none_says_where(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(CatalogError, match=says):
        load_catalog(str(path))
    with pytest.raises(CatalogError, match="cannot be read"):
        load_catalog(str(tmp_path / "nowhere.toml"))
