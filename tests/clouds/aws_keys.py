"""Encryption of EBS volumes by default, and the keys for it, for tests.

Sources: the API references of EC2 and KMS; "Requirements for Amazon EBS encryption" and karpenter-provider-aws#1407: a
launch with a key that may not be used is accepted, and its machine ends with Client.InternalError; ROSA's page on
invalidKMSKey and CiscoDevNet/cloud-cml#8: with Client.InvalidKMSKey.InvalidState.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.clouds.aws_wire import Call, FakeAwsError, ec2_answer
from tests.clouds.base import Answer

ACCOUNT = "123456789012"
SPOT_ROLE = f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"
_DEFAULT = {"Sid": "Enable IAM User Permissions", "Effect": "Allow", "Action": "kms:*", "Resource": "*"}


@dataclass
class Key:
    """A region's key. As a new one of the account's own is: enabled, with the default policy, and without grants."""

    region: str
    manager: str = "CUSTOMER"
    state: str = "Enabled"
    principals: list[str] = field(default_factory=lambda: [f"arn:aws:iam::{ACCOUNT}:root"])
    grantees: list[str] = field(default_factory=list)

    @property
    def arn(self) -> str:
        """Its name."""
        return f"arn:aws:kms:{self.region}:{ACCOUNT}:key/1234abcd-12ab-34cd-56ef-1234567890ab"

    def ends_launches_with(self, *, spot: bool) -> str:
        """The reason for which EC2 ends a machine that it has begun to launch; "" for none."""
        if self.state != "Enabled":
            return "Client.InvalidKMSKey.InvalidState"
        may = SPOT_ROLE in (*self.principals, *self.grantees) or "*" in self.principals
        return "Client.InternalError" if spot and self.manager == "CUSTOMER" and not may else ""


class Keys:
    """`by_region`: with which key a region encrypts all volumes; others encrypt none. `page`: grants in an answer."""

    def __init__(self) -> None:
        self.by_region: dict[str, Key] = {}
        self.page = 2
        self.handlers: dict[str, Callable[[Call], Answer]] = {
            "GetEbsEncryptionByDefault": self._by_default,
            "GetEbsDefaultKmsKeyId": self._default,
            "DescribeKey": self._describe,
            "GetKeyPolicy": self._policy,
            "ListGrants": self._grants,
        }

    def encrypt(self, region: str = "us-east-1", **how: object) -> Key:
        """All volumes of a region from now on, with a key of the account's own."""
        self.by_region[region] = key = Key(region)
        for name, value in how.items():
            setattr(key, name, value)
        return key

    def _by_default(self, call: Call) -> Answer:
        return ec2_answer("GetEbsEncryptionByDefault", {"EbsEncryptionByDefault": call.region in self.by_region})

    def _default(self, call: Call) -> Answer:
        key = self.by_region.get(call.region)
        return ec2_answer("GetEbsDefaultKmsKeyId", {"KmsKeyId": key.arn if key else "alias/aws/ebs"})

    def _asked(self, call: Call) -> Key:
        key = self.by_region.get(call.region)
        if key is None or call.form["KeyId"] != key.arn:
            raise FakeAwsError("NotFoundException", f"Key '{call.form['KeyId']}' does not exist")
        return key

    def _describe(self, call: Call) -> Answer:
        key = self._asked(call)
        known = {"KeyId": key.arn.rpartition("/")[2], "Arn": key.arn, "KeyManager": key.manager, "KeyState": key.state}
        return Answer(200, {"KeyMetadata": {**known, "Enabled": key.state == "Enabled"}})

    def _policy(self, call: Call) -> Answer:
        statement = {**_DEFAULT, "Principal": {"AWS": self._asked(call).principals}}
        return Answer(200, {"Policy": json.dumps({"Version": "2012-10-17", "Statement": [statement]})})

    def _grants(self, call: Call) -> Answer:
        key, first = self._asked(call), int(call.form.get("Marker") or 0)
        found = [{"GrantId": str(number), "GranteePrincipal": each} for number, each in enumerate(key.grantees)]
        more = {"NextMarker": str(first + self.page)} if len(found) > first + self.page else {}
        return Answer(200, {"Grants": found[first : first + self.page], "Truncated": bool(more), **more})
