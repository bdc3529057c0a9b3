"""One machine on an account, asked by the provisioner itself: what launches, listings, logins and ends answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from provisioners.base import Instance, InstanceState, LaunchRequest, Owner, Provisioner, ProvisionerError
from tests.contract.evidence import Recorder, Step, is_over, outcome
from tests.support.machines import LOOK_S, TIMEOUT_S, login, run

# At most: a machine that does not come, or does not end, must not use up the time of the job after it.
RUNNING_S = 420.0
LOGIN_S = 420.0
CONSOLE_S = 300.0
ENDED_S = 600.0
LEFT_S = 300.0
# How long a token's second machine may take to be listed.
SECOND_S = 20.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds. A test cloud's machines come and go at once."""

    running_s: float = RUNNING_S
    login_s: float = LOGIN_S
    console_s: float = CONSOLE_S
    ended_s: float = ENDED_S
    left_s: float = LEFT_S
    second_s: float = SECOND_S


class Probe:
    """One run of it. Every answer goes to the recorder; nothing of it raises for what a cloud answers."""

    def __init__(self, provisioner: Provisioner, owner: Owner, recorder: Recorder, limits: Limits) -> None:
        self._cloud, self._owner, self._recorder, self._limits = provisioner, owner, recorder, limits

    def run(self, request: LaunchRequest) -> None:
        """From the launch to the launch after its end. `request`: of the owner that the probe has."""
        machine = self._launch(Step.LAUNCH, request)
        if not machine:
            return
        self._launch(Step.LAUNCH_AGAIN, request)
        instance = self._until(
            lambda each: each is not None and each.state is InstanceState.RUNNING and bool(each.ssh_host),
            machine,
            self._limits.running_s,
        )
        self._find(request)
        if instance is not None:
            self._login(instance)
            self._console(machine)
        self._terminate(Step.TERMINATE, machine)
        self._terminate(Step.TERMINATE_AGAIN, machine)
        self._until(is_over, machine, self._limits.ended_s)
        self._leftovers()
        # Azure's log, which says that a token was used, may be minutes late.
        self._until(lambda each: each is not None and is_over(each), machine, self._limits.left_s)
        again = self._launch(Step.LAUNCH_AFTER_END, request)
        until = time.monotonic() + self._limits.second_s
        while again and time.monotonic() < until:
            self.look()
            time.sleep(max(LOOK_S, 0.2))

    def look(self) -> tuple[Instance, ...] | None:
        """One listing; None where the cloud gave none."""
        try:
            found = tuple(self._cloud.instances(self._owner, TIMEOUT_S))
        except ProvisionerError:
            return None
        self._recorder.list(self._owner.cluster, found)
        return found

    def _launch(self, step: Step, request: LaunchRequest) -> str:
        began = time.time()
        answer, machine = outcome(self._cloud.launch(request, TIMEOUT_S))
        self._recorder.add(step, answer, began=began, ok=bool(machine), machine=machine)
        return machine

    def _until(self, holds: Callable[[Instance | None], bool], machine: str, timeout_s: float) -> Instance | None:
        """The machine as it is listed, once that holds; None after the time."""
        until, shown = time.monotonic() + timeout_s, False
        while time.monotonic() < until:
            listed = self.look()
            if listed is not None:
                found = next((each for each in listed if each.id == machine), None)
                shown = shown or found is not None
                if shown and holds(found):
                    return found
            time.sleep(LOOK_S)
        return None

    def _find(self, request: LaunchRequest) -> None:
        began = time.time()
        try:
            found = self._cloud.find(self._owner, request.token, TIMEOUT_S)
        except ProvisionerError as error:
            self._recorder.add(Step.FIND, str(error), began=began, ok=False)
            return
        answer = f"machine {found.id}, {found.state}" if found else "no machine of this token"
        self._recorder.add(Step.FIND, answer, began=began, ok=found is not None, machine=found.id if found else "")

    def _login(self, instance: Instance) -> None:
        """With the client's key, under the host key that was given at the launch and no other."""
        began, until, why = time.time(), time.monotonic() + self._limits.login_s, ""
        while time.monotonic() < until:
            try:
                with login(instance) as connection:
                    said = run(connection, "echo in")
            except Exception as error:  # noqa: BLE001 - whatever SSH says is the evidence
                why = f"{type(error).__name__}: {error}"[:300]
                time.sleep(max(LOOK_S, 0.2))
                continue
            self._recorder.add(Step.LOGIN, f"logged in, host key as given: {said.strip()}", began=began)
            return
        self._recorder.add(Step.LOGIN, why, began=began, ok=False)

    def _console(self, machine: str) -> None:
        began, until, answer = time.time(), time.monotonic() + self._limits.console_s, "no console"
        while time.monotonic() < until:
            try:
                if text := self._cloud.console(machine, TIMEOUT_S):
                    self._recorder.add(Step.CONSOLE, f"{len(text)} characters", began=began, machine=machine)
                    return
            except ProvisionerError as error:
                answer = str(error)
            time.sleep(max(LOOK_S * 3, 0.2))
        self._recorder.add(Step.CONSOLE, answer, began=began, ok=False, machine=machine)

    def _terminate(self, step: Step, machine: str) -> None:
        began = time.time()
        try:
            self._cloud.terminate(machine, TIMEOUT_S)
        except ProvisionerError as error:
            self._recorder.add(step, str(error), began=began, ok=False, machine=machine)
        else:
            self._recorder.add(step, "accepted", began=began, machine=machine)

    def _leftovers(self) -> None:
        began, until, left = time.time(), time.monotonic() + self._limits.left_s, ["no listing of leftovers"]
        while True:
            try:
                left = [f"{each.kind} {each.id}" for each in self._cloud.leftovers(self._owner, TIMEOUT_S)]
            except ProvisionerError as error:
                left = [str(error)]
            if not left or time.monotonic() > until:
                break
            time.sleep(max(LOOK_S, 0.2))
        answer = f"left: {', '.join(left)}" if left else "nothing left"
        self._recorder.add(Step.LEFTOVERS, answer, began=began, ok=not left)
