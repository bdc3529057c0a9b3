"""The S3 bucket for checkpoints: made where there is none, left as it is where it is not ours, never emptied unasked.

Names are unique in all of AWS. Sources: the S3 API reference, each operation's page; "Blocking public access to your
Amazon S3 storage" and "Configuring a bucket lifecycle configuration to delete incomplete multipart uploads" (S3 guide).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from provisioners.account import NotYetError
from provisioners.aws.account.plan import AbortUploads, CloseBucket, FoundBucket, MakeBucket
from provisioners.aws.account.wanted import Bucket
from provisioners.aws.describe import tags_of
from provisioners.base import CLUSTER_TAG, KEY_TAG, DeniedError, Owner, ProvisionerError, owner_of
from provisioners.codes import ApiError

ABORT_DAYS = 7  # a save that has not ended within a week never will
# Where all buckets were made before there were regions: it has no LocationConstraint.
FIRST_REGION = "us-east-1"
CLOSED = {
    "BlockPublicAcls": True,
    "IgnorePublicAcls": True,
    "BlockPublicPolicy": True,
    "RestrictPublicBuckets": True,
}
RULE = "spotsup: incomplete uploads"
_OWNER_ONLY = "BucketOwnerEnforced"
# One step deletes for so long, and the next one goes on.
EMPTY_S = 60.0
_TAGGING_PAGES = 20


class Call(Protocol):
    """One call, as AwsAccount makes it."""

    def __call__(self, service: str, region: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Raises ApiError, ProvisionerError; NotYetError where it changes something."""
        ...


class Buckets:
    """Those of one installation. `ask`: calls that change nothing; `change`: those that do; `tags`: of all we make."""

    def __init__(self, ask: Call, change: Call, owner: Owner, tags: Sequence[Mapping[str, str]]) -> None:
        self._ask = ask
        self._change = change
        self._owner = owner
        self._tags = list(tags)

    def found(self, name: str, region: str) -> FoundBucket | None:
        """The bucket of a name; None where nobody has one. One that we may not look at is someone else's."""
        try:
            raw = self._ask("s3", region, "get_bucket_tagging", Bucket=name)
        except ApiError as error:
            if error.reply.code == "NoSuchBucket":
                return None
            if error.reply.code == "NoSuchTagSet":
                return FoundBucket(region, name, owner_of({}))
            raise
        except DeniedError:
            return FoundBucket(region, name, owner_of({}))
        owner = owner_of(tags_of({"Tags": raw.get("TagSet", ())}))
        if owner != self._owner:
            return FoundBucket(region, name, owner)
        rules = self._rules(name, region)
        return FoundBucket(region, name, owner, self._is_closed(name, region), any(map(_is_ours, rules)))

    def ours(self, region: str) -> Iterator[str]:
        """The names of those in a region that have our tags."""
        filters = [
            {"Key": key, "Values": [value]}
            for key, value in ((CLUSTER_TAG, self._owner.cluster), (KEY_TAG, self._owner.key_mark))
        ]
        token = ""
        for _ in range(_TAGGING_PAGES):
            raw = self._ask(
                *("resourcegroupstaggingapi", region, "get_resources"),
                want="ResourceTagMappingList",
                TagFilters=filters,
                ResourceTypeFilters=["s3"],
                **({"PaginationToken": token} if token else {}),
            )
            yield from (str(each["ResourceARN"]).rpartition(":")[2] for each in raw["ResourceTagMappingList"])
            if not (token := str(raw.get("PaginationToken") or "")):
                return
        raise ProvisionerError(f"more than {_TAGGING_PAGES} pages of buckets with this installation's tags in {region}")

    def take(self, step: MakeBucket | CloseBucket | AbortUploads) -> None:
        """As CloudAccount says."""
        bucket = step.bucket
        match step:
            case MakeBucket():
                self._make(bucket)
            case CloseBucket():
                self._change(
                    *("s3", bucket.region, "put_public_access_block"),
                    Bucket=bucket.name,
                    PublicAccessBlockConfiguration=CLOSED,
                )
            case AbortUploads():
                # One call writes all rules: those that a person has added stay.
                others = [each for each in self._rules_of_new(bucket) if each.get("ID") != RULE]
                rule = {
                    "ID": RULE,
                    "Status": "Enabled",
                    "Filter": {"Prefix": ""},
                    "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": ABORT_DAYS},
                }
                self._change(
                    *("s3", bucket.region, "put_bucket_lifecycle_configuration"),
                    Bucket=bucket.name,
                    LifecycleConfiguration={"Rules": [*others, rule]},
                )

    def _make(self, bucket: Bucket) -> None:
        """With its tags from the first moment: one without them would count as a person's own."""
        place = {} if bucket.region == FIRST_REGION else {"LocationConstraint": bucket.region}
        try:
            self._change(
                *("s3", bucket.region, "create_bucket"),
                Bucket=bucket.name,
                ObjectOwnership=_OWNER_ONLY,
                CreateBucketConfiguration={**place, "Tags": self._tags},
            )
        except ApiError as error:
            if error.reply.code != "BucketAlreadyExists":
                raise
            raise ProvisionerError(
                f"someone else has a bucket {bucket.name}, and names are unique in all of AWS: give --checkpoints "
                "another one"
            ) from error

    def delete(self, name: str, region: str) -> None:
        """With all that is in it, of all versions. Raises NotYetError while something is left."""
        found = self.found(name, region)
        if found is None:
            return
        if found.owner != self._owner:
            raise ProvisionerError(
                f"{found} does not have this installation's tags any more: nothing in it was deleted"
            )
        deadline = time.monotonic() + EMPTY_S
        while self._delete_some(name, region):
            if time.monotonic() > deadline:
                raise NotYetError("it holds more objects")
        self._change("s3", region, "delete_bucket", Bucket=name)

    def _delete_some(self, name: str, region: str) -> bool:
        """Delete a thousand objects, and what was begun of others. Whether there were any."""
        raw = self._ask("s3", region, "list_object_versions", Bucket=name)
        found = [
            {"Key": each["Key"], "VersionId": each["VersionId"]}
            for kind in ("Versions", "DeleteMarkers")
            for each in raw.get(kind, ())
        ]
        if found:
            wanted = {"Objects": found, "Quiet": True}
            answer = self._change("s3", region, "delete_objects", Bucket=name, Delete=wanted)
            for each in answer.get("Errors", ()):
                raise ProvisionerError(
                    f"S3 does not delete {each.get('Key')} in {name} ({each.get('Code')}: {each.get('Message')})"
                )
        uploads = self._ask("s3", region, "list_multipart_uploads", Bucket=name).get("Uploads", ())
        for each in uploads:
            upload = {"Key": each["Key"], "UploadId": each["UploadId"]}
            self._change("s3", region, "abort_multipart_upload", Bucket=name, **upload)
        return bool(found or uploads)

    def _is_closed(self, name: str, region: str) -> bool:
        raw = self._unless("NoSuchPublicAccessBlockConfiguration", "get_public_access_block", name, region)
        have = raw.get("PublicAccessBlockConfiguration", {})
        return all(have.get(key) for key in CLOSED)

    def _rules(self, name: str, region: str) -> list[dict[str, Any]]:
        raw = self._unless("NoSuchLifecycleConfiguration", "get_bucket_lifecycle_configuration", name, region)
        return list(raw.get("Rules", ()))

    def _rules_of_new(self, bucket: Bucket) -> list[dict[str, Any]]:
        """Raises NotYetError where the bucket is not there."""
        try:
            return self._rules(bucket.name, bucket.region)
        except ApiError as error:
            if error.reply.code != "NoSuchBucket":
                raise
            raise NotYetError(str(error)) from error

    def _unless(self, code: str, operation: str, name: str, region: str) -> dict[str, Any]:
        """What a call shows, or nothing where it says that there is none."""
        try:
            return self._ask("s3", region, operation, Bucket=name)
        except ApiError as error:
            if error.reply.code == code:
                return {}
            raise


def _is_ours(rule: Mapping[str, Any]) -> bool:
    aborts = rule.get("AbortIncompleteMultipartUpload") or {}
    return rule.get("ID") == RULE and rule.get("Status") == "Enabled" and bool(aborts.get("DaysAfterInitiation"))
