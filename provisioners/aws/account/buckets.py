"""The S3 bucket for checkpoints: made where there is none, used as it is where it is not ours, never emptied unasked.

Names are unique in all of AWS. Sources: the S3 API reference, each operation's page; "Blocking public access to your
Amazon S3 storage" and "Configuring a bucket lifecycle configuration to delete incomplete multipart uploads" (S3 guide).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from provisioners.account import EMPTY_S, Found, NotYetError, Resource, Row, Seen
from provisioners.aws.account import wanted
from provisioners.aws.account.calls import ALLOWED, DENIALS, Calls
from provisioners.aws.describe import tags_of
from provisioners.base import DeniedError, Owner, ProvisionerError, owner_of
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
_TAGGING_PAGES = 20
# Of a bucket of another account S3 says "Access Denied" alone ("Troubleshoot access denied errors", S3 guide).
_OUR_FAULT = "no identity-based policy allows"


class Buckets:
    """Those of one installation. `tags`: of all that is made."""

    def __init__(self, calls: Calls, regions: Sequence[str], tags: Sequence[Mapping[str, str]]) -> None:
        self._calls = calls
        self._regions = regions
        self._tags = list(tags)
        self.rows = (
            Row(wanted.BUCKET, self._buckets, self._make, self._delete, data=True, shared=True),
            Row(wanted.CLOSED, self._closed, self._close),
            Row(wanted.ABORTS, self._aborting, self._abort_uploads),
        )

    def _buckets(self, seen: Seen) -> Iterator[Found]:
        """Yield those that are wanted; or where all is to go, those with our tags, and those that had them before."""
        names = [(each.name, each.place) for each in seen.wants(wanted.BUCKET)]
        if not seen.wanted:
            names = [(each.what.name, each.what.place) for each in seen.all(wanted.BUCKET)]
            names += [(name, region) for region in self._regions for name in self._tagged(region, seen.owner)]
        for name, region in dict.fromkeys(names):
            if (owner := self._owner_of(name, region)) is not None:
                yield Found(wanted.bucket(name, region), owner)

    def _owner_of(self, name: str, region: str) -> Owner | None:
        """Return whose the bucket of a name is; None where nobody has one. One that we may not look at is someone
        else's, unless it is a permission of ours that is missing."""
        try:
            raw = self._calls.get(*("s3", region, "get_bucket_tagging"), frozenset({"NoSuchTagSet"}), Bucket=name)
        except ApiError as error:
            if error.reply.code == "NoSuchBucket":
                return None
            raise
        except DeniedError as error:
            if _OUR_FAULT in str(error):
                raise
            return owner_of({})
        return owner_of(tags_of({"Tags": raw.get("TagSet", ())}))

    def _tagged(self, region: str, owner: Owner) -> Iterator[str]:
        filters = [{"Key": key, "Values": [value]} for key, value in owner.tags.items()]
        token = ""
        for _ in range(_TAGGING_PAGES):
            raw = self._calls.ask(
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

    def _make(self, what: Resource, _seen: Seen) -> None:
        """Make a bucket with its tags from the first moment: one without them would count as a person's own. Servers
        that know tags of directory buckets only ignore them ("CreateBucket", before 2025): then they are put."""
        place = {} if what.place == FIRST_REGION else {"LocationConstraint": what.place}
        try:
            self._calls.change(
                *("s3", what.place, "create_bucket"),
                Bucket=what.name,
                ObjectOwnership="BucketOwnerEnforced",
                CreateBucketConfiguration={**place, "Tags": self._tags},
            )
        except ApiError as error:
            if error.reply.code != "BucketAlreadyExists":
                raise
            raise ProvisionerError(
                f"someone else has a bucket {what.name}, and names are unique in all of AWS: give --checkpoints "
                "another one"
            ) from error
        if self._owner_of(what.name, what.place) == owner_of({}):
            self._tag(what)

    def _tag(self, what: Resource) -> None:
        wish = {"Bucket": what.name, "Tagging": {"TagSet": self._tags}}
        try:
            self._calls.change("s3", what.place, "put_bucket_tagging", **wish)
        except (ProvisionerError, NotYetError) as error:
            raise ProvisionerError(
                f"{error}; the {wanted.BUCKET} {what.name} was made without tags, and would count as yours: delete it "
                f"(`aws s3 rb s3://{what.name}`), and repeat"
            ) from error

    def _delete(self, what: Resource, _seen: Seen) -> None:
        """Delete a bucket with all that is in it, of all versions. Raises NotYetError while something is left."""
        deadline = time.monotonic() + EMPTY_S
        while self._delete_some(what):
            if time.monotonic() > deadline:
                raise NotYetError("it holds more objects")
        self._calls.change("s3", what.place, "delete_bucket", Bucket=what.name)

    def _delete_some(self, bucket: Resource) -> bool:
        """Delete a thousand objects, and what was begun of others. Whether there were any."""
        raw = self._calls.ask("s3", bucket.place, "list_object_versions", Bucket=bucket.name)
        found = [
            {"Key": each["Key"], "VersionId": each["VersionId"]}
            for kind in ("Versions", "DeleteMarkers")
            for each in raw.get(kind, ())
        ]
        if found:
            listed = {"Objects": found, "Quiet": True}
            answer = self._calls.change("s3", bucket.place, "delete_objects", Bucket=bucket.name, Delete=listed)
            for each in answer.get("Errors", ()):
                reason = f"{each.get('Code')}: {each.get('Message')}"
                if each.get("Code") in DENIALS:
                    reason = f"{reason}; it takes s3:DeleteObject and s3:DeleteObjectVersion, which are in {ALLOWED}"
                raise ProvisionerError(f"S3 does not delete {each.get('Key')} in {bucket.name} ({reason})")
        uploads = self._calls.ask("s3", bucket.place, "list_multipart_uploads", Bucket=bucket.name).get("Uploads", ())
        for each in uploads:
            upload = {"Key": each["Key"], "UploadId": each["UploadId"]}
            self._calls.change("s3", bucket.place, "abort_multipart_upload", Bucket=bucket.name, **upload)
        return bool(found or uploads)

    # -- what is set on it ---------------------------------------------------------------------------------

    def _closed(self, seen: Seen) -> Iterator[Found]:
        absent = frozenset({"NoSuchPublicAccessBlockConfiguration"})
        for bucket in seen.ours(wanted.BUCKET) if seen.wanted else ():
            place = ("s3", bucket.what.place, "get_public_access_block")
            raw = self._calls.get(*place, absent, Bucket=bucket.what.name)
            if all(raw.get("PublicAccessBlockConfiguration", {}).get(key) for key in CLOSED):
                yield Found(wanted.closed(bucket.what), bucket.owner)

    def _close(self, what: Resource, _seen: Seen) -> None:
        wish = {"Bucket": what.whole.name, "PublicAccessBlockConfiguration": CLOSED}
        self._calls.change("s3", what.whole.place, "put_public_access_block", **wish)

    def _aborting(self, seen: Seen) -> Iterator[Found]:
        for bucket in seen.ours(wanted.BUCKET) if seen.wanted else ():
            if any(map(_is_ours, self._rules(bucket.what))):
                yield Found(wanted.aborts(bucket.what), bucket.owner)

    def _rules(self, bucket: Resource) -> list[dict[str, Any]]:
        absent = frozenset({"NoSuchLifecycleConfiguration"})
        place = ("s3", bucket.place, "get_bucket_lifecycle_configuration")
        return list(self._calls.get(*place, absent, Bucket=bucket.name).get("Rules", ()))

    def _abort_uploads(self, what: Resource, _seen: Seen) -> None:
        """Write the rule that aborts uploads: one call writes all rules: those that a person has added stay."""
        try:
            others = [each for each in self._rules(what.whole) if each.get("ID") != RULE]
        except ApiError as error:
            if error.reply.code != "NoSuchBucket":
                raise
            raise NotYetError(str(error)) from error
        rule = {
            "ID": RULE,
            "Status": "Enabled",
            "Filter": {"Prefix": ""},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": ABORT_DAYS},
        }
        wish = {"Bucket": what.whole.name, "LifecycleConfiguration": {"Rules": [*others, rule]}}
        self._calls.change("s3", what.whole.place, "put_bucket_lifecycle_configuration", **wish)


def _is_ours(rule: Mapping[str, Any]) -> bool:
    aborts = rule.get("AbortIncompleteMultipartUpload") or {}
    return rule.get("ID") == RULE and rule.get("Status") == "Enabled" and bool(aborts.get("DaysAfterInitiation"))
