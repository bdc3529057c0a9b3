"""The faults by kind: each is injected when it is entered, and repaired as an operator or systemd would."""

from __future__ import annotations

from collections.abc import Mapping

from tests.chaos import daemon_faults, etcd_faults, machine_faults
from tests.chaos.context import Fault
from tests.chaos.plan import Kind

FAULTS: Mapping[Kind, Fault] = {
    Kind.LEADER_KILLED: daemon_faults.leader_killed,
    Kind.LEADER_FROZEN: daemon_faults.leader_frozen,
    Kind.STANDBY_KILLED: daemon_faults.standby_killed,
    Kind.DAEMONS_KILLED: daemon_faults.daemons_killed,
    Kind.ETCD_KILLED: etcd_faults.etcd_killed,
    Kind.ETCD_FROZEN: etcd_faults.etcd_frozen,
    Kind.ETCD_GONE: etcd_faults.etcd_gone,
    Kind.ETCD_CUT_OFF: etcd_faults.etcd_cut_off,
    Kind.ETCD_NARROW: etcd_faults.etcd_narrow,
    Kind.ETCD_COMPACTED: etcd_faults.etcd_compacted,
    Kind.ETCD_DISK_FULL: etcd_faults.etcd_disk_full,
    Kind.ETCD_NO_SPACE: etcd_faults.etcd_no_space,
    Kind.DAEMON_DISK_FULL: daemon_faults.daemon_disk_full,
    Kind.CLOCK_STEPPED: daemon_faults.clock_stepped,
    Kind.API_FLOOD: daemon_faults.api_flood,
    Kind.CLOUD_KILLED: machine_faults.cloud_killed,
    Kind.CLOUD_FROZEN: machine_faults.cloud_frozen,
    Kind.SSHD_KILLED: machine_faults.killed("sshd"),
    Kind.AGENT_KILLED: machine_faults.killed("agent"),
    Kind.AGENT_FROZEN: machine_faults.frozen("agent"),
    Kind.LAUNCHER_KILLED: machine_faults.killed("launcher"),
    Kind.LAUNCHER_FROZEN: machine_faults.frozen("launcher"),
    Kind.FORK_SERVER_KILLED: machine_faults.killed("fork server"),
    Kind.WORKER_KILLED: machine_faults.killed("worker"),
    Kind.WORKER_FROZEN: machine_faults.frozen("worker"),
    Kind.MACHINE_LOST: machine_faults.machine_lost,
    Kind.MACHINE_LOST_WITHOUT_ETCD: machine_faults.machine_lost_without_etcd,
    Kind.MACHINE_FROZEN: machine_faults.frozen("machine"),
    Kind.MACHINES_LOST: machine_faults.machines_lost,
    Kind.MACHINE_NOTICE: machine_faults.machine_notice,
    Kind.JOB_SCALED: machine_faults.job_scaled,
    Kind.NODES_CUT_OFF: machine_faults.nodes_cut_off,
    Kind.NODES_CUT_OFF_LONG: machine_faults.nodes_cut_off,
}
