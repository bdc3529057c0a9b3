"""The list of all clouds. Nothing else in spotsup lists them."""

from __future__ import annotations

from collections.abc import Mapping

from provisioners.aws.descriptor import AWS
from provisioners.azure.descriptor import AZURE
from provisioners.descriptor import Descriptor
from provisioners.gcp.descriptor import GCP
from provisioners.localcloud.descriptor import LOCAL
from provisioners.own.descriptor import OWN

CLOUDS: Mapping[str, Descriptor] = {cloud.name: cloud for cloud in (LOCAL, AWS, GCP, AZURE, OWN)}
