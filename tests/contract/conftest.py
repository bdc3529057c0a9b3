"""The test beds, one per provider."""

from __future__ import annotations

import os

import pytest

from tests.contract.aws_bed import aws_bed, light_aws_bed
from tests.contract.azure_bed import azure_bed, light_azure_bed
from tests.contract.bed import Bed
from tests.contract.gcp_bed import gcp_bed, light_gcp_bed
from tests.contract.local_bed import local_bed

__all__ = [  # fixtures of other modules
    "aws_bed",
    "azure_bed",
    "gcp_bed",
    "light_aws_bed",
    "light_azure_bed",
    "light_gcp_bed",
    "local_bed",
]

# `make contract-real` brings the fixture `real_bed` with it; see real.py.
REAL = "SPOTSUP_CONTRACT_REAL" in os.environ
BEDS = ["real"] if REAL else ["local", "aws", "gcp", "azure"]


@pytest.fixture(params=BEDS)
def bed(request: pytest.FixtureRequest) -> Bed:
    """Each provider's test bed in turn."""
    found: Bed = request.getfixturevalue(f"{request.param}_bed")
    return found


@pytest.fixture(params=BEDS)
def light_bed(request: pytest.FixtureRequest) -> Bed:
    """The same, where nobody logs in to a machine: those of the test clouds are on paper."""
    light = request.param not in {"real", "local"}
    found: Bed = request.getfixturevalue(f"light_{request.param}_bed" if light else f"{request.param}_bed")
    return found
