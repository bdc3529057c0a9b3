"""What a stolen node's identity may do with buckets: the policy that docs/permissions gives nodes, in moto's own IAM.

moto decides by action and resource, and looks at no condition: that a listing is of the prefix only is S3's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import moto.core.responses
import pytest
from botocore.exceptions import ClientError
from moto import settings
from moto.core import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends
from spotsup_trainer.objects.store import ObstoreStore

from tests.support.s3 import REGION, S3

POLICY = Path(__file__).resolve().parents[2] / "docs" / "permissions" / "aws-checkpoints-policy.json"
JOBS = "prefix"  # of all jobs' checkpoints, as in `checkpoints: s3://BUCKET/PREFIX`


@pytest.fixture
def server() -> Iterator[S3]:
    with S3().running() as found:
        for bucket in (found.bucket, "other-bucket"):
            found.client.create_bucket(Bucket=bucket)
            for key in ("prefix/job-1/index.json", "prefix/job-2/index.json", "data/secret"):
                found.client.put_object(Bucket=bucket, Key=key, Body=b"x")
        yield found


@pytest.fixture
def stolen(server: S3, monkeypatch: pytest.MonkeyPatch) -> Any:
    """boto3's S3 with the credentials of a node that has the role's policy. From now on moto asks IAM."""
    iam = iam_backends[DEFAULT_ACCOUNT_ID]["global"]
    name = server.bucket
    text = POLICY.read_text().replace("BUCKET/PREFIX", f"{name}/{JOBS}").replace(":::BUCKET", f":::{name}")
    iam.create_user(REGION, name)
    iam.put_user_policy(name, "checkpoints", json.dumps(json.loads(text)))
    key = iam.create_access_key(name)
    monkeypatch.setattr(settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0.0)
    monkeypatch.setattr(moto.core.responses.ActionAuthenticatorMixin, "request_count", 0)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key.secret_access_key)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_REGION", REGION)
    # by name: boto3 keeps what it has once found in the environment
    given = {"aws_access_key_id": key.access_key_id, "aws_secret_access_key": key.secret_access_key}
    return boto3.client("s3", endpoint_url=server.url, region_name=REGION, **given)


def refused(ask: Callable[[], Any]) -> bool:
    try:
        ask()
    except ClientError as error:
        return bool(error.response["Error"]["Code"] == "AccessDenied")
    return False


def test_checkpoints_need_no_more_than_the_policy(server: S3, stolen: Any) -> None:
    store = ObstoreStore(f"s3://{server.bucket}/{JOBS}/job-1", os.environ, retries=1)
    store.put("folder/part", b"x")
    found = store.get("index.json")
    assert found is not None
    store.swap("index.json", b"y", found[1])
    assert [each.name for each in store.listed()] == ["folder/part", "index.json"]
    # obstore deletes several at once, of which moto asks no policy of a user
    assert not refused(partial(stolen.delete_object, Bucket=server.bucket, Key=f"{JOBS}/job-1/folder/part"))


def test_the_checkpoints_of_all_jobs_at_the_prefix_are_within_reach(server: S3, stolen: Any) -> None:
    """As docs/security.md says: the role is the machine's, and not the job's."""
    place = {"Bucket": server.bucket, "Key": f"{JOBS}/job-2/index.json"}
    assert not refused(partial(stolen.get_object, **place))
    assert not refused(partial(stolen.put_object, **place, Body=b"forged"))
    assert not refused(partial(stolen.delete_object, **place))


def test_nothing_else_is(server: S3, stolen: Any) -> None:
    here, there = {"Bucket": server.bucket, "Key": "data/secret"}, {"Bucket": "other-bucket", "Key": "data/secret"}
    for place in (here, there, {"Bucket": "other-bucket", "Key": f"{JOBS}/job-1/index.json"}):
        assert refused(partial(stolen.get_object, **place)), place
        assert refused(partial(stolen.put_object, **place, Body=b"x")), place
        assert refused(partial(stolen.delete_object, **place)), place
    assert refused(partial(stolen.list_objects_v2, Bucket="other-bucket"))
    assert refused(stolen.list_buckets)
    for bucket in (server.bucket, "other-bucket"):
        assert refused(partial(stolen.delete_bucket, Bucket=bucket))
        assert refused(partial(stolen.put_bucket_policy, Bucket=bucket, Policy="{}"))
        assert refused(partial(stolen.get_bucket_policy, Bucket=bucket))
    assert refused(partial(stolen.create_bucket, Bucket="a-new-bucket"))
