"""Broken accounts, and settings of clouds."""

from __future__ import annotations

from tools.broken_setups.row import CLOUDS, BrokenSetup

_AWS_RENEW = "renew the daemon's AWS credentials, or enable the region, if it is one that an account has to enable"
_AWS_ROLE = "give the daemon's role what docs/permissions/aws-iam-policy.json lists"

ROWS = (
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
        f"STS in us-east-1 answered AuthFailure: …; {_AWS_RENEW}",
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
        f"EC2 in us-east-1 answered UnauthorizedOperation for ec2:RunInstances: …; {_AWS_ROLE}",
    ),
    BrokenSetup(
        "aws-may-not-tag",
        CLOUDS,
        "AWS: no permission to tag",
        "aws, us-east-1 launching",
        f"EC2 in us-east-1 answered UnauthorizedOperation for ec2:CreateTags: …; {_AWS_ROLE}",
    ),
    BrokenSetup(
        "aws-may-not-pass-role",
        CLOUDS,
        "AWS: no permission to give nodes their role",
        "aws, us-east-1 launching",
        f"EC2 in us-east-1 answered UnauthorizedOperation for iam:PassRole: …; {_AWS_ROLE}",
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
        "aws-region-not-enabled",
        CLOUDS,
        "AWS: a region that the account has not enabled",
        "aws, me-central-1 region",
        (
            "me-central-1 does not accept the credentials that us-east-1 accepts: enable it for the account (AWS "
            "console, Account, AWS Regions), or remove it from aws.regions"
        ),
        also=("aws, other installations",),
    ),
    BrokenSetup(
        "aws-first-region-not-enabled",
        CLOUDS,
        "AWS: the same, and no other region",
        "aws, credentials",
        f"STS in me-central-1 answered InvalidClientTokenId: …; {_AWS_RENEW}",
    ),
    BrokenSetup(
        "aws-arm-image",
        CLOUDS,
        "AWS: an image for another architecture",
        "aws, us-east-1 launching",
        (
            "EC2 in us-east-1 (…) answered InvalidParameterValue: The architecture 'x86_64' of the specified instance "
            "type does not match the architecture 'arm64' of the specified AMI. …; name an image of the type's "
            "architecture in aws.image or, by GPU, in aws.images"
        ),
    ),
    BrokenSetup(
        "aws-no-profile-of-nodes",
        CLOUDS,
        "AWS: nodes' instance profile does not exist",
        "aws, us-east-1 launching",
        (
            "EC2 in us-east-1 (…) answered InvalidParameterValue: Value (nodes) for parameter iamInstanceProfile.name "
            "is invalid. Invalid IAM Instance Profile name; set aws.instance_profile to an instance profile of this "
            "account (a role of that name is not enough)"
        ),
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
        "aws-key-denied",
        CLOUDS,
        "AWS: volumes are encrypted with a key that spot machines may not use",
        "aws, us-east-1 encryption",
        (
            "us-east-1 encrypts volumes by default with the key arn:aws:kms:…, which AWSServiceRoleForEC2Spot may not "
            "use, so that EC2 ends spot machines while they start: let the key's policy, or a grant, give that role "
            "what EBS encryption needs, or make another key the default"
        ),
    ),
    BrokenSetup(
        "aws-key-disabled",
        CLOUDS,
        "AWS: volumes are encrypted with a key that is disabled",
        "aws, us-east-1 encryption",
        (
            "us-east-1 encrypts volumes by default with the key arn:aws:kms:…, which is in the state Disabled, so that "
            "EC2 ends machines while they start: enable the key, or make another one the default (EC2 console, Data "
            "protection and security)"
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
        "aws-no-mount-target",
        CLOUDS,
        "AWS: an EFS file system without mount targets",
        "job, machines",
        (
            "aws cannot give what first asks for: EFS fs-01234567 in us-east-1 has no mount target, so that no node "
            "can mount it: create one in each zone's subnet"
        ),
        program="spotsupd check --job",
    ),
    BrokenSetup(
        "aws-mount-target-of-another-zone",
        CLOUDS,
        "AWS: mount targets only where the types are not",
        "job, machines",
        (
            "aws cannot give what first asks for: the job's EFS file systems have mount targets in us-east-1e, and "
            "these types are in …: create mount targets there, or ask for other types"
        ),
        program="spotsupd check --job",
    ),
    BrokenSetup(
        "aws-closed-mount-target",
        CLOUDS,
        "AWS: mount targets that let no node in",
        "job, machines",
        (
            "aws cannot give what first asks for: EFS fs-01234567 in us-east-1 cannot be mounted: … of its mount "
            "target in us-east-1a does not let nodes in at port 2049: add a rule for …"
        ),
        program="spotsupd check --job",
    ),
    BrokenSetup(
        "aws-no-file-system",
        CLOUDS,
        "AWS: an EFS file system that does not exist",
        "job, machines",
        (
            "aws cannot give what first asks for: EFS in us-east-1 answered FileSystemNotFound: …: name an existing "
            "file system in the job's storage"
        ),
        program="spotsupd check --job",
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
        "gcp-api-disabled",
        CLOUDS,
        "GCP: a project that does not use Compute Engine yet",
        "gcp, credentials",
        (
            "Compute Engine (a-project) answered accessNotConfigured: …; enable the Compute Engine API and billing "
            "for the project that gcp.project names"
        ),
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
        "gcp-arm-image",
        CLOUDS,
        "GCP: an image for another architecture",
        "gcp, image",
        (
            "image ubuntu-accelerator-2404-arm64-with-nvidia-580-v20261101 is for arm64, and the machines for "
            "x86_64: set gcp.image"
        ),
    ),
    BrokenSetup(
        "gcp-x64-image",
        CLOUDS,
        "GCP: the reverse, for machines with Arm processors",
        "gcp, image of GB200",
        (
            "image ubuntu-accelerator-2404-amd64-with-nvidia-580-v20261101 is for x86_64, and the machines for arm64: "
            "set gcp.images"
        ),
    ),
    BrokenSetup(
        "gcp-no-account",
        CLOUDS,
        "GCP: nodes' service account does not exist",
        "gcp, service account",
        (
            "the service account nodes@a-project.iam.gserviceaccount.com does not exist: create it, or set "
            "gcp.service_account to one that does"
        ),
    ),
    BrokenSetup(
        "gcp-may-not-act-as",
        CLOUDS,
        "GCP: the daemon may not act as nodes' service account",
        "gcp, service account",
        (
            "the daemon's account may not act as nodes@a-project.iam.gserviceaccount.com, so that no machine would be "
            "created: give it roles/iam.serviceAccountUser on that account"
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
        "azure-not-registered",
        CLOUDS,
        "Azure: a subscription that has never had a machine",
        "azure, reading",
        (
            "the daemon may not read machines, …: Azure, asked for machines, answered MissingSubscriptionRegistration: "
            "…; run once for the namespace that it names: az provider register --namespace NAMESPACE"
        ),
        also=("azure, eastus image", "azure, eastus sizes", "azure, other installations"),
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
        "azure-arm-image",
        CLOUDS,
        "Azure: an image for another architecture",
        "azure, eastus image",
        (
            "image Canonical:ubuntu-24_04-lts:server-arm64:latest is for arm64, and the machines for x86_64: set "
            "azure.image"
        ),
    ),
    BrokenSetup(
        "azure-x64-image",
        CLOUDS,
        "Azure: the reverse, for machines with Arm processors",
        "azure, eastus image",
        (
            "image microsoft-dsvm:ubuntu-hpc:2404:24.04.2026010100 is for x86_64, and the machines for arm64: set "
            "azure.images.GB200"
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
)
