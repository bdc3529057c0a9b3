"""What `spotsupd check` finds out about a region's default encryption of EBS volumes: whether machines can start.

"Requirements for Amazon EBS encryption" and "AWSEC2SpotServiceRolePolicy": EC2 launches spot machines with the role
AWSServiceRoleForEC2Spot, which has no right to use a key of the account's own. EC2 accepts such launches, and ends the
machines. The key's policy or a grant has to name the role; Amazon's own key, aws/ebs, admits all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from provisioners.aws.client import MAX_PAGES, Aws
from provisioners.base import DeniedError, ProvisionerError
from provisioners.calls import Deadline
from provisioners.codes import ApiError

_ROLE = "AWSServiceRoleForEC2Spot"


def check(aws: Aws, region: str, deadline: Deadline) -> str:
    """Return the finding's message. Raises ProvisionerError where machines would end while they start."""
    answer = aws.ask("ec2", region, "get_ebs_encryption_by_default", deadline, want="EbsEncryptionByDefault")
    if not answer["EbsEncryptionByDefault"]:
        return f"{region} encrypts no volumes by default"
    key = aws.ask("ec2", region, "get_ebs_default_kms_key_id", deadline, want="KmsKeyId")["KmsKeyId"]
    if key.endswith("alias/aws/ebs"):
        return f"{region} encrypts volumes by default with Amazon's own key"
    known = aws.ask("kms", region, "describe_key", deadline, want="KeyMetadata", KeyId=key)["KeyMetadata"]
    if known.get("KeyManager") == "AWS":
        return f"{region} encrypts volumes by default with Amazon's own key"
    encrypts = f"{region} encrypts volumes by default with the key {key}"
    if (state := known.get("KeyState")) != "Enabled":
        raise ProvisionerError(
            f"{encrypts}, which is in the state {state}, so that EC2 ends machines while they start: enable the key, "
            "or make another one the default (EC2 console, Data protection and security)"
        )
    try:
        admitted = _admits(_policy(aws, region, key, deadline)) or _is_granted(aws, region, key, deadline)
    except (ApiError, DeniedError) as error:  # another account's key, for one
        return f"{encrypts}, whose policy has to let {_ROLE} use it; it cannot be read here ({error})"
    if not admitted:
        raise ProvisionerError(
            f"{encrypts}, which {_ROLE} may not use, so that EC2 ends spot machines while they start: let the key's "
            "policy, or a grant, give that role what EBS encryption needs, or make another key the default"
        )
    return f"{encrypts}, which {_ROLE} may use"


def _policy(aws: Aws, region: str, key: str, deadline: Deadline) -> Mapping[str, Any]:
    text = aws.ask("kms", region, "get_key_policy", deadline, want="Policy", KeyId=key, PolicyName="default")["Policy"]
    try:
        policy = json.loads(text)
    except ValueError as error:
        raise ProvisionerError(f"KMS in {region} answered a policy that is not JSON") from error
    if not isinstance(policy, dict):
        raise ProvisionerError(f"KMS in {region} answered a policy that is not one")
    return policy


def _admits(policy: Mapping[str, Any]) -> bool:
    """True if a statement names the role, or everybody. The default policy names the account, which leaves the
    decision to the policies of its roles; that of this role has no key in it. Conditions are not looked at."""
    found = policy.get("Statement") or ()
    statements = [found] if isinstance(found, dict) else [each for each in found if isinstance(each, dict)]
    for each in statements:
        principal = each.get("Principal")
        of_aws = principal.get("AWS") if isinstance(principal, dict) else principal
        names = [of_aws] if isinstance(of_aws, str) else list(of_aws or ())
        if each.get("Effect") == "Allow" and any(_is_role(name) or name == "*" for name in names):
            return True
    return False


def _is_granted(aws: Aws, region: str, key: str, deadline: Deadline) -> bool:
    more: dict[str, str] = {}
    for _ in range(MAX_PAGES):
        answer = aws.ask("kms", region, "list_grants", deadline, want="Grants", KeyId=key, **more)
        if any(_is_role(each.get("GranteePrincipal", "")) for each in answer["Grants"]):
            return True
        if not answer.get("Truncated") or not answer.get("NextMarker"):
            return False
        more = {"Marker": answer["NextMarker"]}
    raise ProvisionerError(f"KMS in {region} has more than {MAX_PAGES} pages of grants of {key}")


def _is_role(name: object) -> bool:
    return str(name).endswith(f"/{_ROLE}")
