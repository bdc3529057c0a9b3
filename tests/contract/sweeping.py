"""Ends what runs on an account have made, found by what they noted on this computer, and by their tags."""

from __future__ import annotations

import fcntl
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from provisioners.base import Instance, InstanceState, Owner, Provisioner, ProvisionerError
from tests.contract.errors import UnusableError
from tests.contract.metered import sweep
from tests.contract.spending import JOB_S, PROBE_S
from tests.support.console import write_result
from tests.support.machines import TIMEOUT_S
from tools.stack import Stack

SWEEP_S = 900.0
ALL = "all"
# A run of somebody else's on this account may still go on; no run is older.
MAX_RUN_S = PROBE_S + JOB_S + SWEEP_S
_NAME = re.compile(r"(contract-[0-9a-f]{8})(-.*)?")


@contextmanager
def running(folder: Path, name: str) -> Iterator[None]:
    """While this lasts, no sweep of another process takes the run for one that was killed."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def end_all(provisioner: Provisioner, owners: Sequence[Owner], quiet_s: float) -> list[str]:
    """End all that carries these tags; what could not be ended."""
    if not owners:
        print("nothing was launched")
        return []
    print(f"ending what carries the tags of {len(owners)} owners of this run", flush=True)
    left = sweep(provisioner, owners, quiet_s=quiet_s, timeout_s=SWEEP_S)
    if left:
        print(f"LEFT, and may cost money: {'; '.join(left)}", file=sys.stderr)
    else:
        print("nothing is left")
    return left


def sweep_by_name(
    provisioner: Provisioner, folder: Path, name: str, quiet_s: float, now: Callable[[], float] = time.time
) -> int:
    """End one run, or all of which nothing goes on (`ALL`). 1 where something is left. Raises UnusableError.

    What was noted here is ended, and what carries a run's tags. A run that was noted on another computer is ended only
    if it is named, or older than any run can be. Of all, those are left out that ended everything themselves.
    """
    noted = {each: _noted(folder, each, provisioner.name) for each in _names(folder)}
    if name != ALL and name in noted and noted[name] is None:
        raise UnusableError(f"{name} was a run on another cloud")
    found = _tagged(provisioner)
    unswept = {each for each, owners in noted.items() if owners is not None and not _is_swept(folder, each)}
    wanted = unswept if name == ALL else {name}
    if name == ALL:
        young = {each for each, machines in found.items() if each not in noted and _is_young(machines, now())}
        for each in sorted(young):
            print(f"{each} is of another computer and may still run; to end it nevertheless: SWEEP={each}")
        wanted |= set(found) - young
    elif name not in noted and name not in found:
        known = ", ".join(sorted({*noted, *found})) or "none"
        raise UnusableError(f"no run {name!r} is known here, and no machine carries its tags; known: {known}")
    owners = []
    for each in sorted(wanted):
        if _goes_on(folder, each):
            print(f"{each} still runs on this computer: end that process first", file=sys.stderr)
            return 1
        _end_daemon(folder, each)
        owners += [*(noted.get(each) or ()), *(machine.owner for machine in found.get(each, ()))]
    if end_all(provisioner, list(dict.fromkeys(owners)), quiet_s):
        return 1
    for each in wanted & set(noted):
        note(folder, each, provisioner.name, noted[each] or (), swept=True)
    return 0


def note(folder: Path, name: str, cloud: str, owners: Sequence[Owner], *, swept: bool = False) -> None:
    """Before anything is launched under these tags; `swept`: once nothing of it is left."""
    content = [{"cluster": each.cluster, "key_mark": each.key_mark} for each in owners]
    write_result(folder / f"{name}.json", {"cloud": cloud, "owners": content, "swept": swept})


def _names(folder: Path) -> list[str]:
    return sorted(each.stem for each in folder.glob("contract-*.json")) if folder.is_dir() else []


def _noted(folder: Path, name: str, cloud: str) -> list[Owner] | None:
    """None where it was a run on another cloud."""
    record = json.loads((folder / f"{name}.json").read_text())
    return [Owner(**each) for each in record["owners"]] if record["cloud"] == cloud else None


def _is_swept(folder: Path, name: str) -> bool:
    return bool(json.loads((folder / f"{name}.json").read_text()).get("swept"))


def _tagged(provisioner: Provisioner) -> dict[str, list[Instance]]:
    """Run -> the machines of the account that carry its tags."""
    try:
        listed = provisioner.instances(None, TIMEOUT_S)
    except ProvisionerError as error:
        raise UnusableError(f"{provisioner.name} cannot be asked for machines: {error}") from error
    found: dict[str, list[Instance]] = {}
    for each in listed:
        if each.state is not InstanceState.TERMINATED and (match := _NAME.fullmatch(each.owner.cluster)):
            found.setdefault(match[1], []).append(each)
    return found


def _is_young(machines: Sequence[Instance], now: float) -> bool:
    """Also one of which the cloud does not say yet when it was launched."""
    return any(not each.launched_at or each.launched_at > now - MAX_RUN_S for each in machines)


def _goes_on(folder: Path, name: str) -> bool:
    path = folder / f"{name}.lock"
    if not path.exists():
        return False
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _end_daemon(folder: Path, name: str) -> None:
    """A killed run's daemon goes on with its job, and would replace what is ended here."""
    stack = folder / name
    if (stack / "socket").exists():
        Stack(stack).close()
        print(f"{name}: its daemon is ended", flush=True)
