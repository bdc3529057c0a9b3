"""An installation whose local cloud has virtual machines, and two machines beside those of its jobs: one for storage,
and a bare one to bootstrap. All are launched, reached and ended as nodes are."""

from __future__ import annotations

import json
import time
from pathlib import Path

from bootstrap import Archive, Setup, SshHost, UnreachableError
from bootstrap.connect import connected
from bootstrap.model import Run
from provisioners.base import Instance, LaunchRequest, Market, Offer, OfferQuery
from provisioners.local import LocalProvisioner
from provisioners.localcloud.machine import qemu
from supervisor.config import Config, load_config
from supervisor.identity import Identity, load_identity
from supervisor.journal.etcd_server import EmbeddedEtcd
from supervisor.model import NodeRecord
from supervisor.new_job import new_job
from supervisor.nodes.prepare import pack_trainer, setup_of
from supervisor.spec import JobSpec
from tools.stack import Stack, StackError

CLUSTER = "acceptance"
STORAGE, BARE_NODE = "storage", "bare-1"
CALL_S = 30.0
LOGIN_S = 700.0
TRIES = 5

# Emulated processors are twenty times slower than real ones, so all time limits are longer.
CONFIG = """\
cluster = "acceptance-jobs"
state_dir = {state_dir}
[api]
socket = {socket}
[etcd]
node_endpoints = [{etcd}]
[local]
image = {image}
[node]
python = "python3"
lease_ttl_s = 30.0
[timing]
listing_s = 2.0
consistency_s = 15.0
orphan_grace_s = 10.0
leader_ttl_s = 10.0
leave_margin_s = 20.0
gather_s = 60.0
suspect_s = 60.0
bootstrap_timeout_s = 900.0
ready_timeout_s = 900.0
drain_timeout_s = 90.0
"""

_SERVE = r"""
sudo -n sh -c '
set -eu
mkdir -p /srv/export
chmod 1777 /srv/export
# noresvport on the clients takes ports that only `insecure` allows, as the file systems of clouds do.
echo "/srv/export *(rw,sync,fsid=0,no_subtree_check,insecure)" >/etc/exports
systemctl start nfs-server
exportfs -ra
'
"""


class Testbed:
    """In the folder of `stack`, with the machine image in `image`."""

    __test__ = False  # for pytest: its name begins like a test's

    def __init__(self, stack: Stack, image: Path) -> None:
        self.stack = stack
        self.cloud = LocalProvisioner(stack.cloud_dir)
        self.image = image

    def open(self) -> None:
        """etcd, the daemon and its cloud, with no machine yet."""
        self.stack.prepare()
        etcd = EmbeddedEtcd(self.stack.state / "etcd")
        etcd.start()
        values = {
            "state_dir": str(self.stack.state),
            "socket": str(self.stack.socket),
            "etcd": etcd.endpoint.replace("127.0.0.1", qemu.HOST),
            "image": str(self.image),
        }
        self._etcd = values["etcd"]
        text = CONFIG.format(**{name: json.dumps(value) for name, value in values.items()})
        (self.stack.folder / "spotsupd.toml").write_text(text)
        self.stack.start_daemon()

    @property
    def config(self) -> Config:
        """The daemon's."""
        return load_config(self.stack.folder / "spotsupd.toml")

    @property
    def identity(self) -> Identity:
        """The daemon's."""
        return load_identity(self.stack.state / "cluster.key")

    def launch(self, node: str) -> None:
        """A machine of no job."""
        request = LaunchRequest(
            token=f"{CLUSTER}-{node}",
            owner=self.identity.owner(CLUSTER),
            node=node,
            offer=self.cloud.offers(OfferQuery(market=Market.SPOT), CALL_S)[0],
            host_key=self.identity.host_key(node),
            authorized_keys=self.identity.authorized_keys(node),
        )
        self.cloud.launch(request, CALL_S)
        self.stack.wait_for(lambda: bool(self.instance(node).ssh_host), 60.0, f"{node} to be listed with an address")

    def instance(self, node: str) -> Instance:
        """The machine of a node, of any cluster. Raises StackError where there is none."""
        for each in self.cloud.instances(None, CALL_S):
            if each.node == node:
                return each
        raise StackError(f"the local cloud lists no machine of {node}")

    def target(self, node: str) -> SshHost:
        """How to reach a node over SSH."""
        found = self.instance(node)
        return SshHost(
            host=found.ssh_host,
            port=found.ssh_port,
            user=qemu.USER,
            host_key_public=self.identity.host_key(node).public,
            client_key_openssh=self.identity.client_key().private_openssh,
        )

    def run(self, node: str, script: str, timeout_s: float = 120.0) -> str:
        """Run a script on a node once it accepts a login. Returns its output. Raises BootstrapError."""
        command = Run(script.strip().splitlines()[0][:60], script, timeout_s)
        for left in reversed(range(TRIES)):
            try:
                with connected(self.target(node), node, time.monotonic, time.monotonic() + LOGIN_S) as shell:
                    return shell.run(command).stdout.strip()
            except UnreachableError:  # an emulated machine may take more than a session's 10 s to open it
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def storage(self) -> str:
        """The NFS source that nodes mount."""
        return f"{self.instance(STORAGE).private_address}:/"

    def serve_storage(self) -> None:
        """Turn one machine into an NFS server."""
        self.run(STORAGE, _SERVE, 240.0)

    def setup(self, spec: JobSpec, code: bytes) -> Setup:
        """The set-up that the supervisor would pass to bootstrap for the bare machine."""
        archive, found = Archive.of(code), self.instance(BARE_NODE)
        job = new_job(spec, archive.sha256, "bare", time.time())
        offer = Offer("local", found.region, found.zone, found.instance_type, Market.SPOT, 0.0, gpu="T4", gpus=1)
        node = NodeRecord(
            BARE_NODE,
            job.name,
            "",
            offer,
            time.time(),
            ssh_host=found.ssh_host,
            ssh_port=found.ssh_port,
            private_address=found.private_address,
            metadata_url=found.metadata_url,
        )
        return setup_of(self.config, node, job, (self._etcd,), archive, pack_trainer(), None)
