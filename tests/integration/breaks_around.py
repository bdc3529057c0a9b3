"""How the rows of tools/broken_setups/around.py are broken: Slack, secrets, checkpoints, packages."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

from tests.integration.test_entry import other_wheel, refusal_of
from tests.support.broken_setups import Setup, breaks, bucket, closed_port, page
from tests.support.interpreters import interpreter
from tests.support.s3 import DENIED, Fault
from tools.stack import ROOT

# -- Slack, secrets and checkpoints ------------------------------------------------------------------------------


@breaks("slack-not-a-url")
def _(setup: Setup) -> None:
    os.environ["SPOTSUP_SLACK_WEBHOOK"] = "#training"


@breaks("slack-no-file")
def _(setup: Setup) -> None:
    setup.config["slack"] = {"webhook_file": str(setup.folder / "nowhere")}


@breaks("slack-gone")
def _(setup: Setup) -> None:
    os.environ["SPOTSUP_SLACK_WEBHOOK"] = page(setup, 404)


@breaks("slack-unreachable")
def _(setup: Setup) -> None:
    os.environ["SPOTSUP_SLACK_WEBHOOK"] = f"http://127.0.0.1:{closed_port(setup)}"


@breaks("secrets-readable")
def _(setup: Setup) -> None:
    setup.config["slack"] = {"webhook_file": setup.write("slack-webhook", page(setup), 0o644)}


@breaks("environment-readable")
def _(setup: Setup) -> None:
    setup.write("environment", "AWS_SECRET_ACCESS_KEY=x\n", 0o644)


@breaks("bucket-missing")
def _(setup: Setup) -> None:
    bucket(setup, "s3://no-such-bucket-here/jobs")


@breaks("bucket-denied")
def _(setup: Setup) -> None:
    bucket(setup).fault = lambda _: Fault(error=DENIED)


@breaks("bucket-read-only")
def _(setup: Setup) -> None:
    bucket(setup).fault = lambda request: Fault(error=DENIED) if "delete" in request.query else None


@breaks("bucket-key-denied")
def _(setup: Setup) -> None:
    # buildkite/docs#2344
    text = (
        "User: arn:aws:sts::123456789012:assumed-role/node/i-0abc is not authorized to perform: kms:GenerateDataKey on "
        "this resource because the resource does not exist in this Region, no resource-based policies allow access, or "
        "a resource-based policy explicitly denies access"
    )
    bucket(setup).fault = lambda _: Fault(error=(DENIED[0], DENIED[1], text))


@breaks("bucket-key-disabled")
def _(setup: Setup) -> None:
    disabled = "400 Bad Request", "KMS.DisabledException", "arn:aws:kms:us-east-1:123456789012:key/1 is disabled."
    bucket(setup).fault = lambda _: Fault(error=disabled)


@breaks("bucket-clock")
def _(setup: Setup) -> None:
    # aws-sdk-php#612
    text = "The difference between the request time and the current time is too large."
    bucket(setup).fault = lambda _: Fault(error=("403 Forbidden", "RequestTimeTooSkewed", text))


@breaks("bucket-region")
def _(setup: Setup) -> None:
    moved = "301 Moved Permanently", "PermanentRedirect", "Use the endpoint of the bucket."
    bucket(setup).fault = lambda _: Fault(error=moved)


# -- packages --------------------------------------------------------------------------------------------------


@breaks("package-shadowed")
def _(setup: Setup) -> None:
    with zipfile.ZipFile(other_wheel(setup.folder, "supervisor")) as archive:
        archive.extractall(setup.folder / "other")
    setup.said = refusal_of(Path(sys.executable).parent / "spotsupd", PYTHONPATH=str(setup.folder / "other"))


@breaks("python-too-old")
def _(setup: Setup) -> None:
    python = interpreter("3.9")
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import spotsup_entry; spotsup_entry.spotsupd()"
    setup.values["old"] = str(python)
    setup.said = refusal_of(python, "-c", code)
