"""`spotsupd init --account` and `spotsupd destroy` as people run them, against the test cloud."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.identity import load_identity
from tests.clouds.azure_machines import GROUP as RESOURCE_GROUP
from tests.clouds.azure_machines import SUBSCRIPTION
from tests.clouds.azure_requests import SUBNETS
from tests.clouds.base import wire_cloud
from tests.clouds.gcp_compute import PROJECT
from tests.integration import test_aws_account, test_azure_account, test_gcp_account
from tests.integration.test_init import AWS
from tests.integration.test_permissions import DAEMONS, NEEDS_NO_PERMISSION, granted_on_azure, granted_on_gcp
from tests.support.documents import blocks
from tests.support.host_box import as_root, host
from tests.support.machines import launched_by, request_for
from tests.support.programs import run_module
from tests.unit.test_cloud_docs import granted as granted_on_ec2
from tools.stack import ROOT

INSTALL = ROOT / "docs" / "install.md"
GROUP, DAEMON = "spotsup-vision-nodes", "spotsup-vision-daemon"


@dataclass(frozen=True)
class Rented:
    """A cloud: what `init` is told of it, what it makes for someone at a desk, and what it then says of whose it is."""

    name: str
    options: tuple[str, ...]
    made: tuple[str, ...]
    whose: str
    made_settings: tuple[str, ...]

    def account(self, server: Any) -> Any:
        """The test cloud's account."""
        cloud = server.cloud
        home = {"aws": "ec2", "gcp": "compute", "azure": "arm"}[self.name]
        return getattr(cloud, home).account


RENTED = {
    "aws": Rented(
        "aws", ("--region", "us-east-1"), (GROUP,), "the AWS account 123456789012, as arn:aws:", ("security_groups",)
    ),
    "gcp": Rented(
        "gcp",
        ("--region", "us-central1", "--set", "project=a-project"),
        ("spotsup-vision-ssh", GROUP),
        "the Google Cloud project a-project, as daemon@a-project.iam.gserviceaccount.com",
        ("network_tags",),
    ),
    "azure": Rented(
        "azure",
        (
            *("--region", "eastus", "--set", f"subscription={SUBSCRIPTION}"),
            *("--set", f"resource_group={RESOURCE_GROUP}"),
        ),
        ("spotsup-vision-eastus", "spotsup-vision-eastus"),
        f"the resource group {RESOURCE_GROUP} of the Azure subscription {SUBSCRIPTION}, as spotsupd",
        ("security_groups", "subnets"),
    ),
}


@dataclass(frozen=True)
class Desk:
    """A user's folders, and a cloud."""

    folder: Path
    server: Any
    cloud: Rented = RENTED["aws"]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environ = {
            **self.server.environ,
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": "",
            "XDG_STATE_HOME": str(self.folder / "state"),
        }
        return run_module("supervisor.cli.daemon", *arguments, environ=environ)

    def init(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        state = ("--state-dir", str(self.key.parent))
        asked = ("--kind", "personal", "--cloud", self.cloud.name, *self.cloud.options, "--cluster", "vision", *state)
        trust = ("--set", f"endpoint_ca={self.server.ca}") if hasattr(self.server, "ca") else ()
        cloud = ("--set", "reach=ssh", "--set", f"endpoint={self.server.url}", *trust, "--account")
        return self.run("init", *asked, *cloud, *arguments)

    def destroy(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("destroy", "--config", str(self.config), *arguments)

    @property
    def config(self) -> Path:
        return self.folder / ".config" / "spotsup" / "spotsupd.toml"

    @property
    def key(self) -> Path:
        return self.folder / "state" / "spotsup" / "cluster.key"

    def left(self) -> list[str]:
        found: list[str] = self.cloud.account(self.server).left()
        return found


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with wire_cloud("aws") as server:
        yield Desk(tmp_path, server)


FROM = ("--ssh-from", "198.51.100.7")


@pytest.mark.nightly
@pytest.mark.parametrize("name", RENTED)
def test_an_account_is_filled_as_the_dry_run_said_and_emptied_when_that_was_agreed_to(
    name: str, tmp_path: Path
) -> None:
    with wire_cloud(name) as server:
        desk, cloud = Desk(tmp_path, server, RENTED[name]), RENTED[name]
        dry = desk.init(*FROM, "--dry-run")
        assert (dry.returncode, dry.stderr, desk.left(), desk.config.exists()) == (0, "", [], False)
        assert f"in {cloud.whose}" in dry.stdout
        done = desk.init(*FROM, "--yes")
        assert (done.returncode, done.stderr) == (0, "")
        would, did = (
            [line.removeprefix(word) for line in text.splitlines() if line.startswith(word)]
            for word, text in (("would ", dry.stdout), ("done: ", done.stdout))
        )
        assert sorted(would) == sorted(did)
        assert desk.left() == [*cloud.made]  # whoever sits at a desk has credentials of their own
        section = tomllib.loads(desk.config.read_text())[name]
        assert {*cloud.made_settings} <= {*section}
        seen = desk.init(*FROM, "--dry-run")
        assert ("would " in seen.stdout, "--replace" in seen.stdout) == (False, False), seen.stdout
        asked = desk.destroy()
        assert (asked.returncode, desk.left()) == (2, [*cloud.made])
        assert "Delete that? Give --yes, or --dry-run to see only" in asked.stderr
        assert cloud.made[-1] in asked.stdout
        gone = desk.destroy("--yes")
        assert (gone.returncode, gone.stderr, desk.left()) == (0, "", [])
        assert "nothing of this installation is left in the account" in gone.stdout
        assert desk.key.exists()


# The file of permissions of whoever runs `init` and `destroy`; what else they are told to make; all calls of the layer
# below, of which some are for rare moments; and a permission to look at machines.
_DOCUMENTED: dict[str, Any] = {
    "aws": (
        ("aws-account-policy.json", granted_on_ec2("aws-account-policy.json")),
        "s3://runs/vision",
        test_aws_account.everything,
        "ec2:DescribeInstances",
    ),
    "gcp": (
        ("gcp-account-role.yaml", granted_on_gcp("gcp-account-role.yaml") - test_gcp_account.FOR_PEOPLE),
        "gs://runs/vision",
        test_gcp_account.everything,
        "compute.instances.list",
    ),
    "azure": (
        ("azure-account-role.json", granted_on_azure("azure-account-role.json")),
        "abfs://runs@visionruns.dfs.core.windows.net/vision",
        test_azure_account.everything,
        "Microsoft.Compute/virtualMachines/read",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", RENTED)
def test_init_and_destroy_need_exactly_the_permissions_that_are_documented(name: str, tmp_path: Path) -> None:
    (_, documented), url, everything, _ = _DOCUMENTED[name]
    with wire_cloud(name) as server:
        desk = Desk(tmp_path, server, RENTED[name])
        done = desk.init(*FROM, "--checkpoints", url, "--shared-storage", "--yes")
        assert (done.returncode, done.stderr) == (0, "")
        assert desk.destroy("--dry-run").returncode == 0
        gone = desk.destroy("--yes", "--with-data")
        assert (gone.returncode, gone.stderr, desk.left()) == (0, "", [])
        assert server.cloud.used() - documented == NEEDS_NO_PERMISSION & server.cloud.used()
        everything(server)
        assert server.cloud.used() - NEEDS_NO_PERMISSION == documented


@pytest.mark.nightly
@pytest.mark.parametrize("name", RENTED)
def test_who_may_not_look_at_machines_is_told_of_the_file_for_whoever_runs_destroy(name: str, tmp_path: Path) -> None:
    (file, _), _, _, permission = _DOCUMENTED[name]
    with wire_cloud(name) as server:
        desk = Desk(tmp_path, server, RENTED[name])
        assert desk.init(*FROM, "--yes").returncode == 0
        server.cloud.denied = {permission}
        refused = desk.destroy("--yes")
        assert (refused.returncode, desk.left()) == (1, [*RENTED[name].made])
        assert refused.stderr.startswith("spotsupd: nothing was deleted: ")
        assert re.findall(r"docs/permissions/\S+", refused.stderr) == [f"docs/permissions/{file}"]
        assert permission in refused.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("name", RENTED)
def test_check_and_refresh_call_nothing_that_the_daemon_may_not(name: str, tmp_path: Path) -> None:
    with wire_cloud(name) as server:
        desk = Desk(tmp_path, server, RENTED[name])
        assert desk.init(*FROM, "--yes").returncode == 0
        server.cloud.calls.clear()
        for command in (("check", "--embedded-etcd"), ("catalogue", "refresh")):
            done = desk.run(*command, "--config", str(desk.config))
            assert (f"{name}: " in done.stdout or f"{name}, credentials" in done.stdout, done.stderr) == (True, "")
        assert server.cloud.used() - DAEMONS[name] - NEEDS_NO_PERMISSION == set()


@pytest.mark.nightly
def test_what_is_made_has_the_mark_of_the_key(desk: Desk) -> None:
    assert desk.init(*FROM, "--yes").returncode == 0
    (group,) = tomllib.loads(desk.config.read_text())["aws"]["security_groups"]["us-east-1"]
    assert group.startswith("sg-")
    (raw,) = desk.server.cloud.fleet.backend("us-east-1").describe_security_groups(group_ids=[group])
    tags = {each["key"]: each["value"] for each in raw.get_tags()}
    assert tags["spotsup-key-mark"] == load_identity(desk.key).mark


@pytest.mark.nightly
def test_nothing_is_deleted_while_a_machine_is_left(desk: Desk) -> None:
    assert desk.init(*FROM, "--yes").returncode == 0
    cloud = desk.server.provisioner()
    owner = load_identity(desk.key).owner("vision")
    machine = launched_by(cloud, replace(request_for(cloud, "n1"), owner=owner))
    refused = desk.destroy("--yes")
    assert (refused.returncode, desk.left()) == (5, [GROUP])
    assert f"this installation still has {machine.id}" in refused.stderr


@pytest.mark.nightly
def test_after_the_documented_installation_destroy_says_which_rule_has_to_go_first(desk: Desk) -> None:
    assert desk.init(*FROM, "--yes").returncode == 0
    (nodes,) = tomllib.loads(desk.config.read_text())["aws"]["security_groups"]["us-east-1"]
    backend = desk.server.cloud.fleet.backend("us-east-1")
    vpc = backend.describe_security_groups(group_ids=[nodes])[0].vpc_id
    host = backend.create_security_group("host", "the daemon's host", vpc_id=vpc).id
    (line,) = (
        line
        for each in blocks(INSTALL, "sh")
        if each.heading == _SECTIONS["aws"]
        for line in each.commands()
        if line.startswith("aws ec2 authorize-security-group-ingress ")
    )
    given = dict(re.findall(r"--([a-z-]+) (\S+)", line))
    assert given["source-group"] == "NODES"
    rule: tuple[Any, ...] = (host, given["protocol"], given["port"], given["port"], [])
    backend.authorize_security_group_ingress(*rule, source_groups=[{"GroupId": nodes}])
    for options in (("--dry-run",), ("--yes",)):
        refused = desk.destroy(*options)
        assert (refused.returncode, desk.left()) == (1, [GROUP, "host"])
        assert f"would delete the security group {GROUP}" in refused.stdout
        assert f"`aws ec2 revoke-security-group-ingress --region us-east-1 --group-id {host}" in refused.stderr
    backend.revoke_security_group_ingress(*rule, source_groups=[{"GroupId": nodes}])
    gone = desk.destroy("--yes")
    assert (gone.returncode, gone.stderr, desk.left()) == (0, "", ["host"])


@pytest.mark.nightly
def test_who_says_too_little_is_told_before_anything_is_made(desk: Desk) -> None:
    for arguments, code, message in (
        ((), 2, "nodes have public addresses, and see the daemon come from its own: say which"),
        (FROM, 2, "Make that in the account? Give --yes, or --dry-run to see only"),
        ((*FROM, "--checkpoints", "gs://x", "--yes"), 1, "nothing was made: 'gs://x' is no bucket of S3"),
    ):
        done = desk.init(*arguments)
        assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    alone = desk.run("init", "--kind", "personal", "--cloud", "local", "--yes")
    assert "are for --account" in alone.stderr
    assert (desk.left(), desk.config.exists(), desk.key.exists()) == ([], False, False)


@pytest.mark.nightly
def test_without_the_clusters_key_nothing_is_deleted(desk: Desk) -> None:
    assert desk.init(*FROM, "--yes").returncode == 0
    desk.key.unlink()
    done = desk.destroy("--yes")
    assert (done.returncode, desk.left(), desk.key.exists()) == (1, [GROUP], False)
    assert "without the cluster's key" in done.stderr


@as_root
@pytest.mark.nightly
def test_a_host_gets_a_role_and_the_configuration_the_ids(tmp_path: Path) -> None:
    with wire_cloud("aws") as server:
        account = f"--set endpoint={server.url} --account --ssh-from 198.51.100.7 --checkpoints s3://models/runs"
        said = host(
            f"""
            export {" ".join(f"{name}={value}" for name, value in server.environ.items())}
            spotsupd init --cluster vision {AWS} {account} --yes
            cat /etc/spotsup/spotsupd.toml
            echo == second
            spotsupd init --cluster vision {AWS} {account} --yes
            echo == destroy
            spotsupd destroy --config /etc/spotsup/spotsupd.toml --yes
            echo == data
            spotsupd destroy --config /etc/spotsup/spotsupd.toml --yes --with-data
            """,
            tmp_path,
        )
        left, used = server.cloud.ec2.account.left(), server.cloud.used()
    assert used - granted_on_ec2("aws-account-policy.json") == NEEDS_NO_PERMISSION
    first, second, kept, gone = re.split(r"== \w+\n", said)
    assert "done: make the S3 bucket models (us-east-1)" in first
    assert "the S3 bucket models (us-east-1) stays with its data" in kept
    assert f"done: make the IAM role {DAEMON}" in first
    assert 'instance_profile = "spotsup-vision-node"' in first
    assert re.search(r'us-east-1 = \["sg-[0-9a-f]+"\]', first)
    assert f"--iam-instance-profile Name={DAEMON} --instance-id ID" in first
    assert "--port 2379 --source-group sg-" in first
    assert ("done: " in second, "all files are there" in second) == (False, True)
    assert ("nothing of this installation is left in the account" in gone, left) == (True, [])


# What docs/install.md calls things, what they are in the test clouds, and what `init` prints for what it cannot know.
_SECTIONS = {"aws": "On AWS", "gcp": "On Google Cloud", "azure": "On Azure"}
_OURS = {
    "my-project": PROJECT,
    "=ID ": f"={SUBSCRIPTION} ",
    "=training": f"={RESOURCE_GROUP}",
    "SUBNET": SUBNETS["eastus"],
}
_PRINTED = {
    "aws": ((r"sg-[0-9a-f]+", "NODES"),),
    "gcp": ((r"\bHOST\b", "spotsup"), (r"\bZONE\b", "us-central1-a"), (PROJECT, "my-project")),
    "azure": (
        (r"\bHOST\b", "spotsup"),
        (RESOURCE_GROUP, "training"),
        (r"--identities \S+", "--identities IDENTITY"),
        (r"(echo AZURE_CLIENT_ID)=\S+ >>", r"\1=CLIENT | sudo tee -a "),
    ),
}


@as_root
@pytest.mark.nightly
@pytest.mark.parametrize("name", _SECTIONS)
def test_a_host_is_made_by_the_documented_command_which_prints_the_documented_ones(name: str, tmp_path: Path) -> None:
    documented = [line for each in blocks(INSTALL, "sh") if each.heading == _SECTIONS[name] for line in each.commands()]
    (init,) = (line for line in documented if line.startswith("sudo -E spotsupd init "))
    for theirs, ours in _OURS.items():
        init = init.replace(theirs, ours)
    init = init.removeprefix("sudo -E ").replace("10.0.0.5", "etcd.example")
    with wire_cloud(name) as server:
        trust = f"--set endpoint_ca={server.ca}" if hasattr(server, "ca") else ""
        said = host(
            f"""
            export {" ".join(f"{key}={value}" for key, value in server.environ.items())}
            {init} --set endpoint={server.url} {trust} --yes
            """,
            tmp_path,
        )
    printed = [
        line.strip().partition("     #")[0] for line in said.splitlines() if re.match(r" +(aws|gcloud|az|echo) ", line)
    ]
    for pattern, word in _PRINTED[name]:
        printed = [re.sub(pattern, word, line) for line in printed]
    # In Google's default network all machines reach each other.
    printed = [line for line in printed if "firewall-rules create spotsup-default-etcd" not in line]
    assert printed
    assert [line for line in documented if line in printed] == printed
