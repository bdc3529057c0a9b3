"""The cloud's records and the calls that change them, from any thread.

A call only changes records; the engine acts on them. A record is on disk before anything is done for it, so a server
that is killed between two steps continues at its next start.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from provisioners.base import EndCause, HostKey, Market
from provisioners.localcloud import processes, rules
from provisioners.localcloud.machine import qemu
from provisioners.localcloud.machine.spec import Spec
from provisioners.localcloud.models import (
    Fault,
    LaunchBody,
    Machine,
    Refusal,
    RefusedError,
    Settings,
    SettingsPatch,
)
from provisioners.localcloud.processes import Identity, Target
from provisioners.localcloud.programs import SshPrograms
from provisioners.localcloud.settings import DEAD_MAN_S
from provisioners.localcloud.store import Birth, Store
from provisioners.userdata import DeadMan, user_data


@dataclass(frozen=True, slots=True)
class Launch:
    """The outcome of a launch call. `fault`: what happens to its connection (drop-reply, done-but-error, twice,
    hang)."""

    machine: Machine | None
    fault: Fault | None = None


def target_of(machine: Machine) -> Target:
    """Return the processes of a machine that runs."""
    return Target(machine.id, Identity(machine.pid, machine.started))


class Cloud:
    """The records over a locked store. `now` gives UNIX seconds."""

    def __init__(
        self,
        store: Store,
        birth: Birth,
        programs: SshPrograms,
        settings: Settings,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.birth = birth
        self.store = store
        self.now = now
        self.on_change: Callable[[], None] = lambda: None
        self._programs = programs
        self._settings = settings
        self._machines = store.machines()
        self._changed = threading.Condition()
        store.save_settings(settings)

    # -- reads ---------------------------------------------------------------------------------------------

    def settings(self) -> Settings:
        """Return the current settings."""
        with self._changed:
            return self._settings

    def machines(self) -> dict[str, Machine]:
        """Return all records by machine id, in the order of their launches."""
        with self._changed:
            return dict(self._machines)

    def machine(self, machine: str) -> Machine:
        """Return one record. Raises RefusedError (not-found)."""
        with self._changed:
            if machine not in self._machines:
                raise RefusedError(Refusal(kind="not-found", message=f"there is no machine {machine!r}"))
            return self._machines[machine]

    def wait_ended(self, machine: str, timeout_s: float) -> Machine:
        """Return the record once no process is left; RefusedError when some still are after `timeout_s`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.machine(machine).ended_at is not None, timeout_s):
                raise rules.refused(self.machine(machine), f"still has processes after {timeout_s:.0f} s")
            return self.machine(machine)

    # -- calls ---------------------------------------------------------------------------------------------

    def patch(self, patch: SettingsPatch) -> Settings:
        """Change the settings."""
        with self._changed:
            self._set(patch.applied_to(self._settings))
            settings = self._settings
        self.on_change()
        return settings

    def launch(self, body: LaunchBody) -> Launch:
        """Accept one machine; it is PENDING until its launch delay is over. Raises RefusedError."""
        with self._changed:
            fault = self._next_fault()
            refusal = rules.fault_refusal(fault) if fault else None
            if refusal is not None:
                raise RefusedError(refusal)
            if fault is Fault.HANG:
                return Launch(None, fault)
            machine = self._known(body) or self._take_on(body)
        self.on_change()
        return Launch(machine, fault)

    def preempt(self, machine: str, notice_s: float, *, false_alarm: bool = False) -> Machine:
        """Announce a preemption: the machine's metadata says so when this returns. Raises RefusedError."""
        with self._changed:
            known = self.machine(machine)
            change = rules.announce(known, notice_s, self.now(), false_alarm=false_alarm)
            if change:
                known = self.update(machine, **change)
                assert known.preempt_at is not None
                self.store.folder(machine).write_preemption(known.preempt_at)
                self.notify(known)
        self.on_change()
        return known

    def withdraw(self, machine: str) -> Machine:
        """Withdraw an announced preemption, in the machine's metadata too. Raises RefusedError."""
        with self._changed:
            known = self.update(machine, **rules.withdraw(self.machine(machine)))
            self.store.folder(machine).remove_preemption()
            self.notify(known)
        self.on_change()
        return known

    def freeze(self, machine: str) -> Machine:
        """Stop all processes of a machine; listings still report it as running. Raises RefusedError."""
        with self._changed:
            known = self.machine(machine)
            rules.expect_running(known)
            if known.frozen_at is None:
                known = self.update(machine, frozen_at=self.now())
            processes.freeze(target_of(known))
            return known

    def thaw(self, machine: str) -> Machine:
        """Continue all processes of a machine, frozen or not. Raises RefusedError."""
        with self._changed:
            known = self.machine(machine)
            rules.expect_running(known)
            processes.thaw(target_of(known))
            return self.update(machine, frozen_at=None)

    def end(self, machine: str, cause: EndCause) -> Machine:
        """Decide a machine's end; an earlier decision stands. Raises RefusedError (not-found)."""
        with self._changed:
            known = self.machine(machine)
            if known.ending_at is None:
                known = self.update(machine, ending_at=self.now(), end_cause=cause)
        self.on_change()
        return known

    # -- for the engine ------------------------------------------------------------------------------------

    def update(self, machine: str, **change: object) -> Machine:
        """Change one record, on disk first."""
        with self._changed:
            updated = self._machines[machine].model_copy(update=change)
            self.store.save_machine(updated)
            self._machines[machine] = updated
            self._changed.notify_all()
            return updated

    def notify(self, machine: Machine) -> None:
        """Make the machine read its preemption file. Before its report it has no signal handler, and reads it by
        itself."""
        if machine.running_at is not None:
            processes.send(Identity(machine.pid, machine.started), signal.SIGUSR1)

    # -- with the lock held --------------------------------------------------------------------------------

    def _set(self, settings: Settings) -> None:
        self.store.save_settings(settings)
        self._settings = settings

    def _next_fault(self) -> Fault | None:
        if not self._settings.next_launch_faults:
            return None
        fault, *rest = self._settings.next_launch_faults
        self._set(self._settings.model_copy(update={"next_launch_faults": tuple(rest)}))
        return fault

    def _known(self, body: LaunchBody) -> Machine | None:
        mine = rules.owned(self._machines.values(), body.cluster, body.key_mark)
        known = next((each for each in mine if each.token == body.token), None)
        if known is not None and known.digest != body.digest():
            message = f"token {body.token!r} was used for another request, machine {known.id}; take a new token"
            raise RefusedError(Refusal(kind="fatal", message=message))
        return known

    def _take_on(self, body: LaunchBody) -> Machine:
        rules.admit(self._settings, self._machines.values(), body)
        index = 1 + max((each.index for each in self._machines.values()), default=0)
        now = self.now()
        machine = Machine(
            id=f"{self.birth.machine_prefix}{index:04d}",
            index=index,
            token=body.token,
            digest=body.digest(),
            cluster=body.cluster,
            key_mark=body.key_mark,
            node=body.node,
            zone=body.zone,
            instance_type=body.instance_type,
            market=body.market,
            address=rules.address_for(self._settings, self._machines.values(), self.birth.first_address, index),
            virtual=bool(self._settings.image),
            launched_at=now,
            due_at=now + self._settings.launch_delay_s,
            tags=body.tags,
            preempt_at=now + self._settings.flex_lasts_s if body.market is Market.FLEX else None,
        )
        folder = self.store.make_folder(
            machine.id, host_key=body.host_key_private, authorized_keys=body.authorized_keys
        )
        if machine.virtual:
            folder.write_seed(machine.id, _user_data(body))
        folder.write_spec(self._spec(machine))
        self.store.save_machine(machine)
        self._machines[machine.id] = machine
        return machine

    def _spec(self, machine: Machine) -> Spec:
        return Spec(
            id=machine.id,
            zone=machine.zone,
            instance_type=machine.instance_type,
            address=machine.address,
            ssh_port=self._settings.ssh_port,
            image=self._settings.image,
            **self._programs.in_spec,
        )


def _user_data(body: LaunchBody) -> str:
    """Return the same as on rented clouds."""
    host_key = HostKey(public=body.host_key_public, private_openssh=body.host_key_private)
    return user_data(body.node, qemu.USER, body.authorized_keys, host_key, DeadMan(DEAD_MAN_S))
