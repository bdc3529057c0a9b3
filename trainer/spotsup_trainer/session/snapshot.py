"""Writes the user's objects to a checkpoint, and reads them for any world size: torch.distributed.checkpoint (DCP).

Importing this module takes about a second (DCP); the fork server imports it in advance.

Modules and optimizers go through `torch.distributed.checkpoint.state_dict`, which unwraps DDP, FSDP and torch.compile
and shards like them; any other object with `state_dict` and `load_state_dict` is pickled whole. Reading a checkpoint
can run code that its writer put into it (DCP pickles, too): the place must be trusted.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint import (
    CheckpointException,
    DefaultLoadPlanner,
    DefaultSavePlanner,
    FileSystemReader,
    FileSystemWriter,
    LoadPlan,
    Metadata,
    ReadItem,
    state_dict_loader,
    state_dict_saver,
)
from torch.distributed.checkpoint import load as dcp_load
from torch.distributed.checkpoint import save as dcp_save
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from spotsup_trainer.objects.store import MissingError, StoreError
from spotsup_trainer.session.checkpoint_dir import CheckpointError
from spotsup_trainer.session.damage import Checked, written_with_checksums
from spotsup_trainer.session.object_files import Files, ObjectReader, on_store

if TYPE_CHECKING:
    from spotsup_trainer.session.places import Data

State = Mapping[str, Any]
_OPAQUE = "pickled"

if "no_dist" not in inspect.signature(dcp_save).parameters:  # torch 2.6: these are what it calls
    dcp_save, dcp_load = state_dict_saver._save_state_dict, state_dict_loader._load_state_dict  # noqa: SLF001


def check(state: State) -> None:
    """Raise TypeError if something in `state` cannot be saved."""
    for name, thing in state.items():
        if isinstance(thing, torch.optim.Optimizer):
            owner(name, thing, state)
        elif not (isinstance(thing, dict) or (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"))):
            raise TypeError(
                f"state[{name!r}] is of type {type(thing).__name__}, which is no dict, and has no state_dict() and "
                "load_state_dict()"
            )


def owner(name: str, optimizer: torch.optim.Optimizer, state: State) -> torch.nn.Module:
    """Return the one module of `state` whose parameters `optimizer` trains. Raises TypeError if there is none."""
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for candidate in state.values():
        if isinstance(candidate, torch.nn.Module) and trained <= {id(p) for p in candidate.parameters()}:
            return candidate
    raise TypeError(
        f"state[{name!r}] is an optimizer, but no one module in state has all of its parameters; "
        "put that module into state, and if there are several, one torch.nn.ModuleDict of them"
    )


def capture(state: State) -> dict[str, Any]:
    """Return all of `state` as nested dictionaries for DCP; tensors are the live ones, not copies."""
    captured: dict[str, Any] = {}
    for name, thing in state.items():
        if isinstance(thing, torch.nn.Module):
            captured[name] = get_model_state_dict(thing)
        elif isinstance(thing, torch.optim.Optimizer):
            captured[name] = get_optimizer_state_dict(owner(name, thing, state), thing)
        else:
            captured[name] = {_OPAQUE: _pickled(thing)}
    return captured


def digest(state: State, captured: Mapping[str, Any] | None = None) -> bytes:
    """Return a digest of all of `state` that is neither a module nor an optimizer, as it is now or as it was
    `captured`."""
    found = hashlib.blake2b(digest_size=16)
    for name, thing in state.items():
        if not isinstance(thing, (torch.nn.Module, torch.optim.Optimizer)):
            found.update(_pickled(thing) if captured is None else captured[name][_OPAQUE])
    return found.digest()


def opaque(captured: Mapping[str, Any]) -> dict[str, bytes]:
    """Return what was pickled whole, by its name in the state."""
    return {name: value[_OPAQUE] for name, value in captured.items() if value.keys() == {_OPAQUE}}


def put_opaque(captured: Mapping[str, Any], other: Mapping[str, bytes]) -> None:
    """Another rank's in place of this one's."""
    for name in opaque(captured).keys() & other.keys():
        captured[name][_OPAQUE] = other[name]


def part(captured: dict[str, Any]) -> int:
    """Return which part of the state this is: a number of 1 or more and below 2**57, the same for ranks that have the
    same."""
    planner = DefaultSavePlanner()
    planner.set_up_planner(captured, is_coordinator=True)
    described = sorted(
        (item.index.fqn, *((tuple(item.index.offset), tuple(item.tensor_data.chunk.sizes)) if item.tensor_data else ()))
        for item in planner.create_local_plan().items
    )
    return int.from_bytes(hashlib.blake2b(repr(described).encode(), digest_size=7).digest(), "big") + 1


def _pickled(thing: Any) -> bytes:
    pickled = io.BytesIO()
    torch.save(thing if isinstance(thing, dict) else thing.state_dict(), pickled)
    return pickled.getvalue()


def write(captured: dict[str, Any], path: Data, group: Any | None) -> None:
    """Write the ranks' parts: files synced to the disk, or objects. Collective over `group` (None: one process).

    Raises CheckpointError, on every rank, if it failed on any.
    """
    if group is None:
        _expect_no_group()
    writer = _Writer(path if isinstance(path, Path) else "/")
    if not isinstance(path, Path):
        on_store(writer, path.store, path.name)
    try:
        with written_with_checksums():
            dcp_save(
                captured, storage_writer=writer, planner=_SavePlanner(), process_group=group, no_dist=group is None
            )
    except CheckpointException as error:
        failures = ((rank, reason) for rank, (reason, _) in sorted(error.failures.items()))
        texts = (f"rank {rank}: {reason if isinstance(reason, OSError) else repr(reason)}" for rank, reason in failures)
        raise CheckpointError("; ".join(texts)) from None


def incomplete(path: Data) -> str | None:
    """Return what is missing from a written checkpoint, or None: checks that all files exist and have their full
    length.

    Raises StoreError while an object store does not answer, which says nothing about the checkpoint.
    """
    try:
        files = None if isinstance(path, Path) else Files.of(path.checked_objects())
        metadata = _reader(path, files).read_metadata()
    except CheckpointError as error:
        return str(error)
    except Exception as error:  # unpickling a damaged file raises anything
        if is_away(error):
            raise
        return f"{_file(path, '.metadata')} cannot be read: {error!r}"
    needed: dict[str, int] = {}
    for part in (metadata.storage_data or {}).values():
        end = part.offset + part.length
        needed[part.relative_path] = max(needed.get(part.relative_path, 0), end)
    for name, length in needed.items():
        size = _size(path, name) if files is None else files.sizes.get(name)
        if size is None:
            return f"{_file(path, name)} does not exist (do all nodes share this directory?)"
        if size < length:
            return f"{_file(path, name)} has {size} of {length} bytes"
    return None


def _size(path: Data, name: str) -> int | None:
    assert isinstance(path, Path)
    file = path / name
    return file.stat().st_size if file.is_file() else None


def _file(path: Data, name: str) -> str:
    return f"{path}/{name}"


def _reader(path: Data, files: Files | None = None) -> FileSystemReader:
    if isinstance(path, Path):
        return _FileReader(path)
    return _ObjectReader(path.store, path.name, Files.of(path.written()) if files is None else files)


def is_away(error: BaseException) -> bool:
    """True if an object store did not answer: that is no fault of the checkpoint."""
    return isinstance(error, StoreError) and not isinstance(error, MissingError)


@dataclass(frozen=True)
class Item:
    """A part of the state that this rank has, as a checkpoint names it."""

    name: str
    # Of a part of a tensor within the whole; None of an object.
    offsets: tuple[int, ...] | None
    # Of the whole tensor.
    whole: tuple[int, ...]
    # A tensor, or a pickled object.
    data: torch.Tensor | bytes


def items(captured: dict[str, Any]) -> Iterator[Item]:
    """Yield what `write` would write of `captured` if this rank were alone, as DCP plans it. An object is pickled
    here."""
    planner = DefaultSavePlanner()
    planner.set_up_planner(captured, is_coordinator=True)
    for item in planner.create_local_plan().items:
        data = planner.resolve_data(item)
        if isinstance(data, io.BytesIO):
            yield Item(item.index.fqn, None, (), data.getvalue())
        else:
            yield Item(item.index.fqn, tuple(item.tensor_data.chunk.offsets), tuple(item.tensor_data.size), data)


def metadata_of(path: Data) -> Metadata:
    """Return what a checkpoint has, and where. Raises StoreError while an object store does not answer, anything if it
    cannot be read."""
    return _reader(path).read_metadata()


class Reading:
    """Reads a checkpoint or a snapshot with that `metadata` into the live tensors of `state`.

    Raises ValueError if it is of another program or model.
    """

    def __init__(self, state: State, metadata: Metadata) -> None:
        self._state = state
        self._metadata = metadata
        self._captured = capture(state)
        self._planner = _Planner(_required(self._captured, state))
        self._planner.set_up_planner(self._captured, metadata, is_coordinator=False)
        # What this rank needs: parts of tensors, and objects.
        self.items: list[ReadItem] = self._planner.create_local_plan().items

    def destination(self, item: ReadItem) -> torch.Tensor:
        """Return where a part of a tensor belongs."""
        return self._planner.resolve_tensor(item).detach()

    def put_object(self, item: ReadItem, raw: bytes) -> None:
        """Unpickle an object."""
        self._planner.load_bytes(item, io.BytesIO(raw))

    def read(self, items: Sequence[ReadItem], path: Data) -> dict[str, bytes]:
        """Read `items` from a checkpoint. Returns the objects among them, as they were pickled. Raises as
        `metadata_of`."""
        if not items:
            return {}
        reader = _reader(path)
        reader.set_up_storage_reader(self._metadata, is_coordinator=False)
        self._planner.objects.clear()
        reader.read_data(LoadPlan(list(items)), self._planner).wait()
        return dict(self._planner.objects)

    def finish(self) -> None:
        """Finish: all items are in place: load them into the state."""
        captured = self._captured
        for name, thing in self._state.items():
            loaded = captured[name]
            if isinstance(thing, torch.nn.Module):
                set_model_state_dict(thing, loaded)
            elif isinstance(thing, torch.optim.Optimizer):
                # A parameter that never had a gradient has no state in the checkpoint, and must have none now.
                saved = self._planner.prefixes(f"{name}.state.")
                kept = {fqn: slots for fqn, slots in loaded["state"].items() if fqn in saved}
                loaded["state"] = defaultdict(dict, kept)  # torch 2.6 asks for all of them
                lenient = StateDictOptions(strict=False)
                set_optimizer_state_dict(owner(name, thing, self._state), thing, loaded, options=lenient)
            else:
                # weights_only would refuse the user's own objects; DCP unpickles everything but tensors, too
                own = torch.load(io.BytesIO(loaded[_OPAQUE]), self._here, weights_only=False)
                if isinstance(thing, dict):
                    thing.clear()
                    thing.update(own)
                else:
                    thing.load_state_dict(own)

    def _here(self, storage: Any, location: str) -> Any:
        """Put a tensor of rank 0's GPU on this rank's: that of its modules, since a program may have set none."""
        if not location.startswith("cuda") or not torch.cuda.is_available():
            return storage
        modules = [thing for thing in self._state.values() if isinstance(thing, torch.nn.Module)]
        devices = (parameter.device for module in modules for parameter in module.parameters())
        return storage.cuda(next((device for device in devices if device.type == "cuda"), None))


def tensors_in(path: Data) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Size and type of all tensors of a checkpoint, by dotted names. Raises as `read`."""
    try:
        found = _reader(path).read_metadata().state_dict_metadata
    except MissingError as error:
        raise CheckpointError(str(error)) from None
    return {name: (each.size, each.properties.dtype) for name, each in found.items() if hasattr(each, "size")}


def read_tensors(into: dict[str, torch.Tensor], path: Data) -> None:
    """Load the tensors of those dotted names: this rank's part of sharded ones. Not collective. Raises as `read`."""
    _expect_no_group()
    try:
        dcp_load(into, storage_reader=_reader(path), planner=DefaultLoadPlanner(), no_dist=True)
    except MissingError as error:
        raise CheckpointError(str(error)) from None
    except CheckpointException as error:
        if away := [reason for reason, _ in error.failures.values() if is_away(reason)]:
            raise away[0] from None
        raise CheckpointError("; ".join(repr(reason) for reason, _ in error.failures.values())) from None


class _FileReader(Checked, FileSystemReader):  # type: ignore[misc]  # torch is untyped here
    """DCP's own, which notices damage."""


class _ObjectReader(Checked, ObjectReader):
    """The same of an object store."""


class _Writer(FileSystemWriter):  # type: ignore[misc]  # torch is untyped here
    """DCP's own, with the reason for a failure. On a full disk torch reports "[enforce fail at
    inline_container.cc:672] . unexpected pos", and does not send the file system's error to the other ranks.
    """

    def write_data(self, plan: Any, planner: Any) -> Any:
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            reason: BaseException | None = error
            while reason is not None and not isinstance(reason, OSError):
                reason = reason.__cause__ or reason.__context__
            raise reason or error from None


class _SavePlanner(DefaultSavePlanner):  # type: ignore[misc]  # torch is untyped here
    """DCP's own, but that what is pickled comes from the lowest rank that has it, and not from the one that has least
    to write."""

    def create_global_plan(self, all_plans: list[Any]) -> Any:
        taken: set[Any] = set()
        plans = []
        for plan in all_plans:
            items = [each for each in plan.items if each.type != WriteItemType.BYTE_IO or each.index not in taken]
            taken |= {each.index for each in items}
            plans.append(replace(plan, items=items))
        return super().create_global_plan(plans)


def _required(captured: dict[str, Any], state: State) -> set[str]:
    """Return the entries that the checkpoint must have. Not those of optimizers: see `read`; a newer torch may add
    settings."""
    required = set()
    for name, thing in state.items():
        if isinstance(thing, torch.nn.Module):
            required |= {f"{name}.{fqn}" for fqn, value in captured[name].items() if isinstance(value, torch.Tensor)}
        elif not isinstance(thing, torch.optim.Optimizer) and not getattr(thing, "optional", False):
            required.add(f"{name}.{_OPAQUE}")
    return required


class _Planner(DefaultLoadPlanner):  # type: ignore[misc]  # torch is untyped here
    """DCP's own, strict for `required` only."""

    def __init__(self, required: set[str]) -> None:
        super().__init__(allow_partial_load=True)
        self._required = required
        self.objects: dict[str, bytes] = {}

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        self.objects[read_item.storage_index.fqn] = value.getvalue()
        super().load_bytes(read_item, value)

    def create_local_plan(self) -> Any:
        missing = sorted(self._required - self.metadata.state_dict_metadata.keys())
        if missing:
            named = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
            raise ValueError(f"it has no {named}: was it made by another program or model?")
        return super().create_local_plan()

    def prefixes(self, below: str) -> set[str]:
        """Return all dotted beginnings of the checkpoint's keys below `below`: the parameter names among them."""
        parts = (key[len(below) :].split(".") for key in self.metadata.state_dict_metadata if key.startswith(below))
        return {".".join(key[:depth]) for key in parts for depth in range(1, len(key))}


def _expect_no_group() -> None:
    """Silence DCP's warning that there is no process group: that is intended here."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
