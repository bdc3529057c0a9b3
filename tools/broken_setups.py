"""What can be wrong on the day of installing, and what spotsup says then: the parameters of a test, and a page of the
reference. Data only; tests/integration/test_broken_setups.py breaks each one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrokenSetup:
    """One row. In `says`, `…` stands for any text: of the system, of an SDK, of a cloud."""

    id: str
    # The heading that it stands under.
    group: str
    what: str
    # Which check of `spotsupd check` says it, as "etcd, answer"; "" where the program ends with it before any check.
    check: str
    says: str
    # The program that says it.
    program: str = "spotsupd check"
    # Further checks that fail for the same reason.
    also: tuple[str, ...] = ()


CONFIG = "The configuration"
STATE = "The state folder and the key"
ETCD = "etcd"
CLOUDS = "The clouds"
AROUND = "Slack, secrets and checkpoints"
PACKAGES = "Packages"

_SECURE = (
    "Give etcd TLS and users (docs/install.md#on-a-host), set etcd.ca, etcd.user and etcd.password_file, and name its "
    "https addresses in the nodes' network in etcd.node_endpoints; or, where nodes have no route to it, set "
    '`reach = "ssh"` for that cloud'
)
_AWS_ROLE = "give the daemon's role what docs/permissions/aws-iam-policy.json lists"
_FILE = "{folder}/spotsupd.toml"
_ETCD = "etcd at {etcd} cannot be used"
_MARK = "the journal of cluster default in etcd belongs to a cluster.key with mark {mark}, and"
_COPY = "copy the key from another daemon's state folder or a backup, or set another `cluster`"
_WRITABLE = "make room there, run this as the daemon's user, or set state_dir"
_STORE = "checkpoints cannot be written from here: cannot"
_DENIED = "access is denied: give the machine's role what docs/permissions/*-checkpoints-* lists (403 AccessDenied)"

ROWS = (
    BrokenSetup(
        "config-missing",
        CONFIG,
        "no such file",
        "",
        f"cannot read the configuration {_FILE}: No such file or directory",
    ),
    BrokenSetup(
        "config-not-toml",
        CONFIG,
        "a quotation mark is missing",
        "",
        f"{_FILE} is not TOML: …(at line 1, column 30)",
    ),
    BrokenSetup(
        "config-unknown-key",
        CONFIG,
        "a key that does not exist",
        "",
        f"{_FILE}: unknown key `slack.webhook`; known here: webhook_file",
    ),
    BrokenSetup(
        "config-unknown-section",
        CONFIG,
        "a table that does not exist",
        "",
        (f"{_FILE}: unknown key `amazon`; known here: local, aws, gcp, azure, cluster, state_dir, etcd, …"),
    ),
    BrokenSetup(
        "config-wrong-type",
        CONFIG,
        "one region where a list is meant",
        "",
        f"{_FILE}: `aws.regions` is 'us-east-1'; write a list, such as [us-east-1]",
    ),
    BrokenSetup(
        "config-wrong-unit",
        CONFIG,
        "a time with its unit",
        "",
        f"{_FILE}: `timing.suspect_s` is '30s'; write a number, without quotes and without a unit",
    ),
    BrokenSetup(
        "config-too-small",
        CONFIG,
        "a dead-man switch of a minute",
        "",
        f"{_FILE}: `aws.dead_man_s`: a dead-man switch needs at least 1800 s, or 0 for none",
    ),
    BrokenSetup(
        "config-order-of-times",
        CONFIG,
        "two times that do not fit together",
        "",
        f"{_FILE}: `timing`: tick_s (10 s) must be smaller than leader_ttl_s (6 s)",
    ),
    BrokenSetup(
        "config-cluster-name",
        CONFIG,
        "a cluster's name with a space",
        "",
        f"{_FILE}: `cluster` is 'Vision Team': string should match pattern '^[a-z][a-z0-9-]{{0,30}}$'",
    ),
    BrokenSetup(
        "config-required-key",
        CONFIG,
        "a required key is missing",
        "",
        f"{_FILE}: `gcp.project` is missing",
    ),
    BrokenSetup(
        "config-listen-without-tls",
        CONFIG,
        "an embedded etcd that listens without TLS",
        "",
        (f"{_FILE}: `etcd`: listen needs secure = true: an etcd without TLS and users is for loopback only"),
    ),
    BrokenSetup(
        "config-relative-path",
        CONFIG,
        "a relative path",
        "",
        ("state_dir is 'spotsup-state', which depends on the folder in which spotsupd starts: write an absolute path"),
    ),
    BrokenSetup(
        "config-socket-path",
        CONFIG,
        "a path that is too long for a socket",
        "",
        (
            "the socket path {socket} has {bytes} bytes, and Unix sockets take 107: set api.socket (or "
            "--socket) to a shorter one"
        ),
    ),
    BrokenSetup(
        "config-no-cloud",
        CONFIG,
        "no cloud",
        "clouds, set up",
        "no cloud is configured: add a section for one of [local], [aws], [gcp], [azure]",
    ),
    BrokenSetup(
        "config-plain-etcd",
        CONFIG,
        "rented machines, and an etcd without TLS",
        "",
        f"[aws] rents machines, which cannot be given etcd at http://10.0.0.5:2379: it is not encrypted. {_SECURE}",
        program="spotsupd run",
    ),
    BrokenSetup(
        "config-loopback-etcd",
        CONFIG,
        "rented machines, and an etcd on loopback",
        "",
        (
            "[aws] rents machines, which cannot be given etcd at https://127.0.0.1:2379: that address is this "
            f"computer's own. {_SECURE}"
        ),
        program="spotsupd run",
    ),
    BrokenSetup(
        "config-no-users",
        CONFIG,
        "rented machines, and an etcd without users",
        "",
        (
            "[aws] rents machines, and every program on them could change all that is in etcd, which has "
            f"no users. {_SECURE}"
        ),
        program="spotsupd run",
    ),
    BrokenSetup(
        "state-below-a-file",
        STATE,
        "the folder is below a file",
        "ssh, key",
        ("{folder}/file/state/cluster.key cannot be created, {folder}/file is not a folder: set state_dir"),
        also=("local, answer",),
    ),
    BrokenSetup(
        "state-in-use",
        STATE,
        "a second daemon with the same folder",
        "",
        "another spotsupd uses the state folder {folder}/state: stop it, or set another state_dir",
        program="spotsupd run",
    ),
    BrokenSetup(
        "state-full",
        STATE,
        "its disk is full",
        "state, folder",
        f"{{folder}}/disk cannot be written (No space left on device): {_WRITABLE}",
    ),
    BrokenSetup(
        "state-read-only",
        STATE,
        "its file system is mounted read-only",
        "state, folder",
        f"{{folder}}/disk cannot be written (Read-only file system): {_WRITABLE}",
    ),
    BrokenSetup(
        "key-readable",
        STATE,
        "others may read the cluster's key",
        "ssh, key",
        "{folder}/state/cluster.key is readable by others (mode 644): `chmod 600` it",
    ),
    BrokenSetup(
        "key-cut",
        STATE,
        "the key is not complete",
        "ssh, key",
        "{folder}/state/cluster.key holds 31 bytes instead of 32; restore it from a backup",
    ),
    BrokenSetup(
        "key-of-another-cluster",
        STATE,
        "another cluster's key",
        "etcd, journal",
        f"{_MARK} {{folder}}/state/cluster.key is another one (mark {{own}}): {_COPY}",
    ),
    BrokenSetup(
        "key-lost",
        STATE,
        "no key, and etcd has a journal",
        "etcd, journal",
        f"{_MARK} there is no {{folder}}/state/cluster.key: {_COPY}",
    ),
    BrokenSetup(
        "journal-newer",
        STATE,
        "jobs of a newer version",
        "etcd, journal",
        (
            "/spotsup/default/world/jobs/job was written by a newer spotsupd (it has `colour`): run the "
            "newer version, or restore an older backup"
        ),
    ),
    BrokenSetup(
        "journal-older",
        STATE,
        "jobs of an older version",
        "etcd, journal",
        (
            "/spotsup/default/world/jobs/job was written by an older spotsupd (schema 0; this one reads "
            "…): cancel the job with the older version, then submit it again with this one"
        ),
    ),
    BrokenSetup(
        "etcd-down",
        ETCD,
        "it does not run",
        "etcd, answer",
        (
            f"{_ETCD} (…Connection refused)): start it, set etcd.endpoints, or let spotsupd start one "
            "(--embedded-etcd, also here)"
        ),
    ),
    BrokenSetup(
        "etcd-another-program",
        ETCD,
        "another program has the port",
        "etcd, answer",
        (f"{_ETCD} (…this is no answer of etcd: …): another program answers there: correct etcd.endpoints"),
    ),
    BrokenSetup(
        "etcd-plain-for-tls",
        ETCD,
        "http for https",
        "etcd, answer",
        f"{_ETCD} (…): does it want TLS? Then write https:// in etcd.endpoints, and set etcd.ca",
    ),
    BrokenSetup(
        "etcd-tls-for-plain",
        ETCD,
        "https for http",
        "etcd, answer",
        (f"{_ETCD} (…): has it TLS there? Otherwise write http:// in etcd.endpoints, or start it with a certificate"),
    ),
    BrokenSetup(
        "etcd-wrong-ca",
        ETCD,
        "another CA",
        "etcd, answer",
        (f"{_ETCD} (…CERTIFICATE_VERIFY_FAILED…): set etcd.ca to the certificate of the CA that made etcd's"),
    ),
    BrokenSetup(
        "etcd-no-ca-file",
        ETCD,
        "no file with the CA",
        "etcd, set up",
        ("etcd.ca names {folder}/nowhere.pem, which does not exist: correct it, or give the daemon's user access"),
    ),
    BrokenSetup(
        "etcd-certificate-expired",
        ETCD,
        "its certificate has expired",
        "etcd, answer",
        (
            f"{_ETCD} (…certificate has expired…): renew etcd's certificate (`spotsupd etcd-certificates "
            "FOLDER`), or set this computer's clock"
        ),
    ),
    BrokenSetup(
        "etcd-certificate-of-another-name",
        ETCD,
        "its certificate is for another address",
        "etcd, answer",
        (
            f"{_ETCD} (…certificate is not valid for '127.0.0.1'…): make etcd a certificate for it "
            "(`spotsupd etcd-certificates FOLDER --name HOST`), or correct etcd.endpoints"
        ),
    ),
    BrokenSetup(
        "etcd-wrong-password",
        ETCD,
        "a wrong password",
        "etcd, answer",
        (
            f"{_ETCD} (etcd does not accept user 'spotsupd': …): correct etcd.user, or the password in "
            "the file that etcd.password_file names"
        ),
    ),
    BrokenSetup(
        "etcd-no-password-file",
        ETCD,
        "no file with the password",
        "etcd, set up",
        "etcd.password_file names {folder}/nowhere, which cannot be read: No such file or directory",
    ),
    BrokenSetup(
        "etcd-no-login",
        ETCD,
        "it has users, and none is configured",
        "etcd, answer",
        f"{_ETCD} (…user name is empty): it has users: set etcd.user and etcd.password_file",
    ),
    BrokenSetup(
        "etcd-without-users",
        ETCD,
        "it has no users yet",
        "etcd, answer",
        (
            f"{_ETCD} (…authentication is not enabled): it has no users: make them with `spotsupd "
            "etcd-users`, or remove etcd.user and etcd.password_file"
        ),
    ),
    BrokenSetup(
        "etcd-user-without-role",
        ETCD,
        "its user may not do enough",
        "etcd, answer",
        f"{_ETCD} (…permission denied): give the user of etcd.user the role root",
    ),
    BrokenSetup(
        "etcd-full",
        ETCD,
        "its space is used up",
        "etcd, journal",
        (
            "etcd refuses writes because its space quota is used up: training goes on, nothing new "
            "starts until an operator frees space and disarms the alarm (docs/operations.md)"
        ),
    ),
    BrokenSetup(
        "sdk-missing",
        CLOUDS,
        "AWS without its SDK",
        "aws, set up",
        (
            "the SDK for AWS (boto3) is not installed: pip install 'spotsup[aws]', or take [aws] out of "
            "the configuration"
        ),
    ),
    BrokenSetup(
        "aws-no-credentials",
        CLOUDS,
        "AWS: no credentials",
        "aws, credentials",
        (
            "no AWS credentials found: Unable to locate credentials; set them up for the daemon's user, "
            "or name one by aws.profile"
        ),
    ),
    BrokenSetup(
        "aws-no-profile",
        CLOUDS,
        "AWS: a profile that does not exist",
        "aws, credentials",
        (
            "no AWS credentials found: The config profile (research) could not be found; set them up for "
            "the daemon's user, or name one by aws.profile"
        ),
    ),
    BrokenSetup(
        "aws-wrong-credentials",
        CLOUDS,
        "AWS: wrong credentials",
        "aws, credentials",
        "STS in us-east-1 answered AuthFailure: …; renew the daemon's AWS credentials",
    ),
    BrokenSetup(
        "aws-expired-credentials",
        CLOUDS,
        "AWS: expired credentials",
        "aws, credentials",
        (
            "STS in us-east-1 answered RequestExpired: …; renew the daemon's AWS credentials, and check "
            "this computer's clock"
        ),
    ),
    BrokenSetup(
        "aws-clock",
        CLOUDS,
        "AWS: a wrong clock",
        "aws, credentials",
        (
            "STS in us-east-1 answered SignatureDoesNotMatch: …; set this computer's clock: it differs "
            "from AWS's by minutes"
        ),
    ),
    BrokenSetup(
        "aws-may-not-read",
        CLOUDS,
        "AWS: two permissions to read are missing",
        "aws, us-east-1 reading",
        f"the daemon's role lacks ec2:DescribeVolumes, ec2:DescribeAddresses: …; {_AWS_ROLE}",
    ),
    BrokenSetup(
        "aws-may-not-launch",
        CLOUDS,
        "AWS: no permission to launch",
        "aws, us-east-1 launching",
        f"EC2 in us-east-1 answered UnauthorizedOperation: …ec2:RunInstances; {_AWS_ROLE}",
    ),
    BrokenSetup(
        "aws-may-not-tag",
        CLOUDS,
        "AWS: no permission to tag",
        "aws, us-east-1 launching",
        f"EC2 in us-east-1 answered UnauthorizedOperation: …ec2:CreateTags; {_AWS_ROLE}",
    ),
    BrokenSetup(
        "aws-may-not-pass-role",
        CLOUDS,
        "AWS: no permission to give nodes their role",
        "aws, us-east-1 launching",
        f"EC2 in us-east-1 answered UnauthorizedOperation: …iam:PassRole; {_AWS_ROLE}",
    ),
    BrokenSetup(
        "aws-no-image",
        CLOUDS,
        "AWS: an image that does not exist",
        "aws, us-east-1 image",
        "EC2 in us-east-1 answered InvalidAMIID.NotFound: …: set aws.image",
        also=("aws, us-east-1 launching",),
    ),
    BrokenSetup(
        "aws-closed-group",
        CLOUDS,
        "AWS: the default security group",
        "aws, us-east-1 network",
        (
            "the default security group of {vpc} ({group}) does not let the daemon in at port 22, only "
            "its own members: add a rule for the daemon's address, or name another group in "
            "aws.security_groups.us-east-1"
        ),
    ),
    BrokenSetup(
        "aws-no-group",
        CLOUDS,
        "AWS: a security group that does not exist",
        "aws, us-east-1 network",
        (
            "EC2 in us-east-1 answered InvalidGroup.NotFound: …: set aws.subnets and aws.security_groups "
            "to what this region has"
        ),
    ),
    BrokenSetup(
        "aws-no-default-network",
        CLOUDS,
        "AWS: no default VPC",
        "aws, us-east-1 network",
        "us-east-1 has no default VPC: name subnets of another one in aws.subnets",
    ),
    BrokenSetup(
        "aws-private-subnets",
        CLOUDS,
        "AWS: subnets that no public address reaches",
        "aws, us-east-1 network",
        (
            "…of {vpc} has no route to an internet gateway, so that nodes' public addresses cannot be reached: "
            "add one, name public subnets in aws.subnets, or set aws.public_address = false and run the daemon in "
            "the VPC"
        ),
    ),
    BrokenSetup(
        "aws-no-quota",
        CLOUDS,
        "AWS: no quota",
        "aws, us-east-1 quota",
        ("the quotas of us-east-1 allow no GPU spot instance (vCPUs: …): request more in Service Quotas"),
    ),
    BrokenSetup(
        "aws-region-without-types",
        CLOUDS,
        "AWS: a region without GPUs",
        "aws, ca-west-1 launching",
        "ca-west-1 offers no instance type of the catalog: remove it from aws.regions",
    ),
    BrokenSetup(
        "aws-subnet-of-another-zone",
        CLOUDS,
        "AWS: a subnet of another zone",
        "aws, us-east-1 network",
        "aws.subnets: {subnet} is in us-east-1b, not in us-east-1a: name one of us-east-1a there",
    ),
    BrokenSetup(
        "gcp-wrong-credentials",
        CLOUDS,
        "GCP: wrong credentials",
        "gcp, credentials",
        (
            "Google rejects the daemon's credentials: …; renew them (gcloud auth application-default "
            "login, or a new key of the service account)"
        ),
    ),
    BrokenSetup(
        "gcp-no-credentials",
        CLOUDS,
        "GCP: no credentials",
        "gcp, credentials",
        (
            "no Google credentials found: run gcloud auth application-default login as the daemon's "
            "user, or let GOOGLE_APPLICATION_CREDENTIALS name a service account's key file"
        ),
    ),
    BrokenSetup(
        "gcp-clock",
        CLOUDS,
        "GCP: a wrong clock",
        "gcp, credentials",
        (
            "Google rejects the signature of the daemon's credentials: …; set this computer's clock: it "
            "differs from Google's by minutes"
        ),
    ),
    BrokenSetup(
        "gcp-no-project",
        CLOUDS,
        "GCP: a project that does not exist",
        "gcp, credentials",
        ("Compute Engine (no-such-project) answered notFound: …: set gcp.project to an existing project"),
    ),
    BrokenSetup(
        "gcp-may-not-read",
        CLOUDS,
        "GCP: a permission is missing",
        "gcp, reading",
        (
            "the daemon's account lacks compute.instances.list: …; give the daemon's account the role "
            "that docs/permissions/gcp-role.yaml defines"
        ),
        also=("gcp, other installations",),
    ),
    BrokenSetup(
        "gcp-no-image",
        CLOUDS,
        "GCP: an image that does not exist",
        "gcp, image",
        (
            "image projects/ubuntu-os-accelerator-images/global/images/family/nothing does not exist "
            "(notFound): set gcp.image"
        ),
    ),
    BrokenSetup(
        "gcp-closed-network",
        CLOUDS,
        "GCP: no firewall rule for SSH",
        "gcp, network",
        "no firewall rule of network default allows port 22: add one for the daemon",
    ),
    BrokenSetup(
        "gcp-no-quota",
        CLOUDS,
        "GCP: no quota",
        "gcp, us-central1 quota",
        "no GPU quota of us-central1 is above 0: request more at IAM & Admin, Quotas",
    ),
    BrokenSetup(
        "gcp-region-without-types",
        CLOUDS,
        "GCP: a region without GPUs",
        "gcp, europe-north1 machine types",
        "europe-north1 offers no machine type of the catalog: remove it from gcp.regions",
        also=("gcp, europe-north1 quota",),
    ),
    BrokenSetup(
        "azure-wrong-credentials",
        CLOUDS,
        "Azure: wrong credentials",
        "azure, credentials",
        "no valid Azure credentials found: …; set them up for the daemon's user",
    ),
    BrokenSetup(
        "azure-no-group",
        CLOUDS,
        "Azure: a resource group that does not exist",
        "azure, credentials",
        (
            "Azure, asked for the resource group elsewhere, answered ResourceGroupNotFound: …; create "
            "it, or set azure.resource_group"
        ),
    ),
    BrokenSetup(
        "azure-may-not-launch",
        CLOUDS,
        "Azure: permissions are missing",
        "azure, launching",
        (
            "the daemon may not do Microsoft.Compute/virtualMachines/write, …: give it what "
            "docs/permissions/azure-role.json lists"
        ),
    ),
    BrokenSetup(
        "azure-no-switch",
        CLOUDS,
        "Azure: no role for the dead-man switch",
        "azure, dead-man switch",
        (
            "machines have no dead-man switch: Azure bills a machine that has shut itself down, and only "
            "a role lets it deallocate itself; set azure.dead_man_role, or azure.dead_man_s = 0 to do "
            "without"
        ),
    ),
    BrokenSetup(
        "azure-no-subnet",
        CLOUDS,
        "Azure: no subnet",
        "azure, eastus network",
        "no subnet is configured for eastus: set azure.subnets.eastus to the resource id of one there",
    ),
    BrokenSetup(
        "azure-closed-group",
        CLOUDS,
        "Azure: no rule for SSH",
        "azure, eastus network",
        "nodes allows no access to port 22: add a rule for the daemon's address",
    ),
    BrokenSetup(
        "azure-no-image",
        CLOUDS,
        "Azure: an image that does not exist",
        "azure, eastus image",
        (
            "Azure, asked for the image microsoft-dsvm:ubuntu-hpc:1404:latest, answered NotFound: …; set "
            "azure.image to one that eastus has"
        ),
    ),
    BrokenSetup(
        "azure-no-quota",
        CLOUDS,
        "Azure: no quota",
        "azure, eastus quota",
        (
            "the quota of eastus allows no spot instance (lowPriorityCores: 0 vCPUs): request more under "
            "Quotas in the portal"
        ),
    ),
    BrokenSetup(
        "azure-no-sizes",
        CLOUDS,
        "Azure: sizes that the subscription may not use",
        "azure, eastus sizes",
        (
            "eastus offers this subscription no size of the catalog: remove it from azure.regions, or ask Azure "
            "to lift the restriction"
        ),
    ),
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
