"""Calls for an account: those that look are repeated, those that change something are made once; a refusal says
whether to look again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from provisioners.account import Begun, Do, NotYetError, Resource, Seen, changed_once, refusal_of
from provisioners.aws.account.wanted import region_of
from provisioners.aws.client import CREDENTIALS_HINT, Aws
from provisioners.aws.errors import ERRORS
from provisioners.aws.settings import AwsSettings
from provisioners.base import DeniedError, ProvisionerError
from provisioners.calls import Deadline
from provisioners.codes import ApiError

CALL_S = 20.0
ALLOWED = "docs/permissions/aws-account-policy.json"
# What is there already, not there yet, or still in use: the next look decides. Sources: the errors of each operation in
# botocore's service models; terraform-provider-aws#6079: a new role is not found for seconds; EC2 API, Eventual
# consistency: InvalidGroup.NotFound of a new group; DeleteSecurityGroup: DependencyViolation while an interface, as of
# a mount target that is going, or another group's rule uses it.
NOT_YET = frozenset(
    {
        *("InvalidGroup.Duplicate", "InvalidPermission.Duplicate", "InvalidGroup.NotFound"),
        *("InvalidSecurityGroupID.NotFound", "DependencyViolation"),
        *("EntityAlreadyExists", "NoSuchEntity", "DeleteConflict", "ConcurrentModification", "ServiceFailure"),
        *("FileSystemAlreadyExists", "FileSystemNotFound", "FileSystemInUse", "IncorrectFileSystemLifeCycleState"),
        *("MountTargetConflict", "MountTargetNotFound", "SecurityGroupNotFound", "DependencyTimeout"),
        "InternalServerError",
        *("BucketAlreadyOwnedByYou", "OperationAborted", "NoSuchBucket", "BucketNotEmpty", "NoSuchUpload"),
    }
)
# The same, by a part of the message: AWS's own role is there; a profile has its one role.
_TAKEN = (("InvalidInput", "has been taken"), ("LimitExceeded", "PerInstanceProfile"))
_ABSENT = frozenset({"NoSuchEntity", "FileSystemNotFound"})
DENIALS = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})
_ACTIONS = {"efs": "elasticfilesystem", "resourcegroupstaggingapi": "tag"}  # where policies do not use boto3's name
# Where the permission is not called as the operation: "Actions, resources, and condition keys for Amazon S3".
_PERMISSIONS = {
    "get_public_access_block": "GetBucketPublicAccessBlock",
    "put_public_access_block": "PutBucketPublicAccessBlock",
    "get_bucket_lifecycle_configuration": "GetLifecycleConfiguration",
    "put_bucket_lifecycle_configuration": "PutLifecycleConfiguration",
    "list_object_versions": "ListBucketVersions",
    "list_multipart_uploads": "ListBucketMultipartUploads",
}


class Calls:
    """Calls by boto3. IAM and STS, which are global, are called by the first region's clients."""

    def __init__(self, settings: AwsSettings) -> None:
        self.aws = Aws(settings)
        self._home = settings.regions[0]

    def ask(self, service: str, region: str, operation: str, want: str = "", **parameters: Any) -> dict[str, Any]:
        """Make a call that changes nothing. Raises ApiError, ProvisionerError."""
        place = region or self._home
        ask = functools.partial(self.aws.ask, service, place, operation, Deadline(CALL_S), want=want, **parameters)
        return self._permitted(ask, service, operation)

    def get(
        self, service: str, region: str, operation: str, absent: frozenset[str] = _ABSENT, **parameters: Any
    ) -> dict[str, Any]:
        """Return what a call shows; nothing where there is no such thing."""
        try:
            return self.ask(service, region, operation, **parameters)
        except ApiError as error:
            if error.reply.code in absent:
                return {}
            raise

    def change(self, service: str, region: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make a call that changes something: once. Raises NotYetError, ApiError, ProvisionerError."""
        once = functools.partial(self.aws.once, service, region or self._home, operation, CALL_S, **parameters)
        return changed_once(lambda: self._permitted(once, service, operation), _is_late, CREDENTIALS_HINT)

    def does(self, service: str, operation: str, id_key: str = "", **parameters: Any) -> Do:
        """Return a row's call in the region of its resource. Parameters that are functions are asked for their value;
        `id_key`: where the answer has the id of what was made."""

        def do(what: Resource, seen: Seen) -> Begun:
            values = {key: value(what, seen) if callable(value) else value for key, value in parameters.items()}
            answer = self.change(service, region_of(what), operation, **values)
            if id_key and id_key not in answer:
                # It is not AWS's but, say, a proxy's page.
                raise NotYetError(f"the answer has no {id_key}")
            return Begun(str(answer[id_key]) if id_key else "")

        return do

    def _permitted(self, call: Callable[[], dict[str, Any]], service: str, operation: str) -> dict[str, Any]:
        """Make a call. A missing permission is named by its action: AWS's own message does not always have it."""
        try:
            return call()
        except ProvisionerError as error:
            cause = refusal_of(error)
            if cause is None or cause.reply.code not in DENIALS:
                raise
            action = _PERMISSIONS.get(operation) or "".join(part.capitalize() for part in operation.split("_"))
            raise DeniedError(
                f"{cause}; who runs this lacks {_ACTIONS.get(service, service)}:{action}, or what that needs: "
                f"{ALLOWED} has all of it"
            ) from error


def _is_late(error: ApiError) -> bool:
    taken = any(error.reply.code == code and part in error.reply.message for code, part in _TAKEN)
    return taken or error.reply.code in NOT_YET or ERRORS.is_retryable(error.reply)
