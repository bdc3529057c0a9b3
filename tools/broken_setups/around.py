"""What is wrong with what the daemon uses besides clouds and etcd."""

from __future__ import annotations

from tools.broken_setups.row import AROUND, PACKAGES, BrokenSetup

_DENIED = "access is denied: give the machine's role what docs/permissions/*-checkpoints-* lists (403 AccessDenied)"
_STORE = "checkpoints cannot be written from here: cannot"

ROWS = (
    BrokenSetup(
        "slack-not-a-url",
        AROUND,
        "a channel's name for a webhook",
        "slack, webhook",
        "the webhook is not a URL: copy it from Slack, as https://hooks.slack.com/services/…",
    ),
    BrokenSetup(
        "slack-no-file",
        AROUND,
        "no file with the webhook",
        "slack, webhook",
        "slack.webhook_file names {folder}/nowhere, which cannot be read: No such file or directory",
    ),
    BrokenSetup(
        "slack-gone",
        AROUND,
        "a webhook that was removed",
        "slack, webhook",
        "alerts to 127.0.0.1 would be lost: it answers 404 …: make a new webhook in Slack, and set it",
    ),
    BrokenSetup(
        "slack-unreachable",
        AROUND,
        "no way to Slack",
        "slack, webhook",
        (
            "alerts to 127.0.0.1 would be lost: it does not answer (…Connection refused): check the "
            "webhook's URL, and this computer's way there"
        ),
    ),
    BrokenSetup(
        "secrets-readable",
        AROUND,
        "everybody may read the webhook",
        "secrets, files",
        (
            "{folder}/slack-webhook holds secrets, and every user may use it (mode 644): `chmod o= "
            "{folder}/slack-webhook`"
        ),
    ),
    BrokenSetup(
        "environment-readable",
        AROUND,
        "everybody may read the units' environment",
        "secrets, files",
        ("{folder}/environment holds secrets, and every user may use it (mode 644): `chmod o= {folder}/environment`"),
    ),
    BrokenSetup(
        "bucket-missing",
        AROUND,
        "a bucket that does not exist",
        "job, checkpoints",
        (
            f"{_STORE} write s3://no-such-bucket-here/jobs/check/spotsupd: there is no such bucket: make "
            "it, or correct `checkpoints` (404 NoSuchBucket)"
        ),
        program="spotsupd check --job",
    ),
    BrokenSetup(
        "bucket-denied",
        AROUND,
        "a bucket without permission",
        "job, checkpoints",
        f"{_STORE} write s3://{{bucket}}/jobs/check/spotsupd: {_DENIED}",
        program="spotsupd check --job",
    ),
    BrokenSetup(
        "bucket-read-only",
        AROUND,
        "a bucket without permission to delete",
        "job, checkpoints",
        f"{_STORE} delete s3://{{bucket}}/jobs/check/spotsupd: {_DENIED}",
        program="spotsupd check --job",
    ),
    BrokenSetup(
        "bucket-key-denied",
        AROUND,
        "a bucket whose encryption key the role may not use",
        "job, checkpoints",
        (
            f"{_STORE} write s3://{{bucket}}/jobs/check/spotsupd: the key that encrypts the bucket refuses: let the "
            "machine's role use it, by the role's policy and the key's (kms:GenerateDataKey, kms:Decrypt) "
            "(403 AccessDenied)"
        ),
        program="spotsupd check --job",
    ),
    BrokenSetup(
        "bucket-key-disabled",
        AROUND,
        "a bucket whose encryption key is disabled",
        "job, checkpoints",
        (
            f"{_STORE} write s3://{{bucket}}/jobs/check/spotsupd: the key that encrypts the bucket cannot be used: "
            "enable it, or give the bucket another one (400 KMS.DisabledException)"
        ),
        program="spotsupd check --job",
    ),
    BrokenSetup(
        "bucket-clock",
        AROUND,
        "a bucket, and a wrong clock",
        "job, checkpoints",
        (
            f"{_STORE} write s3://{{bucket}}/jobs/check/spotsupd: set the machine's clock: it differs from the store's "
            "by more than 15 minutes (403 RequestTimeTooSkewed)"
        ),
        program="spotsupd check --job",
    ),
    BrokenSetup(
        "bucket-region",
        AROUND,
        "a bucket of another region",
        "job, checkpoints",
        (
            f"{_STORE} write s3://{{bucket}}/jobs/check/spotsupd: the bucket is in another region: set "
            "AWS_REGION to it in the job's `env`"
        ),
        program="spotsupd check --job",
    ),
    BrokenSetup(
        "package-shadowed",
        PACKAGES,
        "another package called `supervisor`",
        "",
        (
            "Python finds another package called `supervisor`, {folder}/other/supervisor (of the "
            "distribution supervisor 4.3.0), instead of spotsup's: remove {folder}/other from "
            "PYTHONPATH, or start spotsup without it"
        ),
        program="spotsupd",
    ),
    BrokenSetup(
        "python-too-old",
        PACKAGES,
        "an old interpreter",
        "",
        (
            "spotsup needs Python 3.11 or newer, and {old} is 3.9: install it with a newer one, as by "
            "`uv tool install --python 3.13 spotsup`"
        ),
        program="spotsupd",
    ),
)
