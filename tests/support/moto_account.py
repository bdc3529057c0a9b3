"""An account on moto's server whose users have the documented policies, and the commands that they run there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioners.aws.settings import AwsSettings
from supervisor.cli.account import permissions
from tests.support.moto_server import REGION, MotoServer
from tests.support.programs import free_ports, run_module
from tests.unit.test_cloud_docs import granted

# Who runs `init --account` and `destroy`, and the daemon, with the policies that the documents give them.
FILES = {"person": "aws-account-policy.json", "daemon": "aws-iam-policy.json"}
# What moto calls two actions: it looks for `public_access_block` in a query that has `publicAccessBlock`, and takes the
# name of a service from the signature.
MOTOS_NAMES = {"s3:GetBucketPublicAccessBlock": "s3:ListBucket", "tag:GetResources": "tagging:GetResources"}
NOTHING = "none:Nothing"
SPOT_ROLE = "AWSServiceRoleForEC2Spot"
BUCKET = "runs"


def in_motos_words(file: str, actions: Collection[str]) -> str:
    """A documented policy, of which only these actions are left."""
    document = json.loads(permissions()[file].replace("BUCKET", BUCKET))
    for each in document["Statement"]:
        listed = [each["Action"]] if isinstance(each["Action"], str) else each["Action"]
        each["Action"] = [MOTOS_NAMES.get(name, name) for name in listed if name in actions] or [NOTHING]
        if not listed[0].startswith("s3:"):
            each["Resource"] = "*"
    return json.dumps(document)


@dataclass(frozen=True)
class Aws:
    """An account with a root user, and one of each role; its network; and a home for those who run commands."""

    moto: MotoServer
    home: Path
    keys: Mapping[str, tuple[str, str]]
    subnet: str
    image: str
    ssh_port: int

    def client(self, service: str, user: str = "root") -> Any:
        """boto3's."""
        return self.moto.client(service, *self.keys[user])

    def allow(self, role: str, actions: Collection[str] | None = None, *, without: str = "") -> None:
        """From now on it may do what its policy says, of that these alone, or all but one."""
        kept = set(granted(FILES[role]) if actions is None else actions) - {without}
        self.write_policy(role, in_motos_words(FILES[role], kept))

    def write_policy(self, role: str, text: str) -> None:
        """Its only one."""
        self.client("iam").put_user_policy(UserName=role, PolicyName="documented", PolicyDocument=text)

    def environ(self, role: str) -> dict[str, str]:
        """Of a command of a user of that role."""
        state = str(self.home / "state")
        return {"AWS_PROFILE": role, "HOME": str(self.home), "XDG_CONFIG_HOME": "", "XDG_STATE_HOME": state}

    @property
    def state(self) -> Path:
        """The folder of the installation that `init` makes."""
        return self.home / "state" / "spotsup"

    @property
    def config(self) -> Path:
        """Its configuration."""
        return self.home / ".config" / "spotsup" / "spotsupd.toml"

    def run(self, role: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`spotsupd`, as a user of that role."""
        return run_module("supervisor.cli.daemon", *arguments, environ=self.environ(role))

    def init(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """As docs/install.md has it for a laptop, with all that may be made."""
        given = {
            "reach": "ssh",
            "endpoint": self.moto.url,
            "public_address": "false",
            f"subnets.{REGION}a": self.subnet,
            "image": self.image,
            "ssh_port": str(self.ssh_port),
        }
        sets = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
        whole = ("--account", "--ssh-from", "127.0.0.1", "--checkpoints", f"s3://{BUCKET}/vision", "--shared-storage")
        asked = ("--kind", "personal", "--cloud", "aws", "--region", REGION, "--state-dir", str(self.state))
        return self.run("person", "init", *asked, *sets, *whole, *arguments)

    def destroy(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Of the same person."""
        return self.run("person", "destroy", "--config", str(self.config), *arguments)

    def refused(self, role: str, action: str, command: Callable[[], subprocess.CompletedProcess[str]]) -> None:
        """Check that a command fails without this action, and names it; afterwards the role has its whole policy."""
        self.allow(role, without=action)
        done = command()
        assert done.returncode == 1, done.stdout
        assert action in done.stdout + done.stderr, done.stdout + done.stderr
        self.allow(role)

    def settings(self, role: str, **given: Any) -> AwsSettings:
        """For what no command does: this process as a user of that role."""
        network: dict[str, Any] = {"subnets": {f"{REGION}a": self.subnet}, "public_address": False}
        known = {"regions": (REGION,), "endpoint": self.moto.url, "image": self.image, "profile": role}
        return AwsSettings(**{**known, **network, **given})

    def left(self) -> list[str]:
        """What `init` makes that is there."""
        iam, found = self.client("iam"), self.client("ec2").describe_security_groups()["SecurityGroups"]
        left = [each["GroupName"] for each in found if each["GroupName"] != "default"]
        left += [each["RoleName"] for each in iam.list_roles()["Roles"] if each["RoleName"].startswith("spotsup")]
        left += [each["InstanceProfileName"] for each in iam.list_instance_profiles()["InstanceProfiles"]]
        left += [each["FileSystemId"] for each in self.client("efs").describe_file_systems()["FileSystems"]]
        return left + [each["Name"] for each in self.client("s3").list_buckets()["Buckets"]]


def opened(moto: MotoServer, home: Path) -> Aws:
    """A new account: its users come first, while nobody needs a permission."""
    moto.reset()
    iam, keys = moto.client("iam", "AKIANOBODY", "none"), {}
    for user in ("root", *FILES):
        iam.create_user(UserName=user)
        made = iam.create_access_key(UserName=user)["AccessKey"]
        keys[user] = (made["AccessKeyId"], made["SecretAccessKey"])
    iam.put_user_policy(UserName="root", PolicyName="everything", PolicyDocument=allowing("*"))
    iam.create_role(RoleName=SPOT_ROLE, Path="/aws-service-role/spot.amazonaws.com/", AssumeRolePolicyDocument="{}")
    rows = [f"[{user}]\naws_access_key_id={name}\naws_secret_access_key={key}" for user, (name, key) in keys.items()]
    (home / "credentials").write_text("\n".join(rows))
    moto.ask_for_permissions()
    ec2 = moto.client("ec2", *keys["root"])
    vpc = ec2.create_vpc(CidrBlock="127.77.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="127.77.1.0/24", AvailabilityZone=f"{REGION}a")["Subnet"]
    image = ec2.register_image(Name="ubuntu", RootDeviceName="/dev/sda1")["ImageId"]
    aws = Aws(moto, home, keys, subnet["SubnetId"], image, free_ports(1)[0])
    for role in FILES:
        aws.allow(role)
    return aws


def allowing(*actions: str) -> str:
    """A policy."""
    statement = {"Effect": "Allow", "Action": [*actions], "Resource": "*"}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})
