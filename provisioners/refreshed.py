"""The catalogue that a cloud describes itself: `spotsupd catalogue refresh` writes it to the state folder, where it is
read beside the built-in one. So a new instance type needs no release of spotsup."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from provisioners.base import BY_THE_HOUR
from provisioners.catalog import Catalog, Gpu, MachineType

_MEMORY_DIFFERS = 0.12  # clouds say 22.4, 23 or 24 GiB of one GPU


@dataclass(frozen=True, slots=True)
class Described:
    """One instance type with GPUs, as its cloud describes it. `gpu`: the cloud's name, or ours; `gpu_gib`: of one GPU,
    None where the cloud does not say."""

    machine: MachineType
    gpu: str
    gpu_gib: float | None = None


def file_of(state: Path, cloud: str) -> Path:
    """Return where a cloud's own catalogue is kept."""
    return state / "catalogue" / f"{cloud}.toml"


def merged_types(found: Sequence[Described], known: Catalog, cloud: str) -> tuple[list[MachineType], dict[str, Gpu]]:
    """(the types, the GPUs that the catalogue does not have), by our names of GPUs. Pure.

    What a cloud does not say of a type that is known, such as how it is sold, stays as it is known.
    """
    gpus: dict[str, Gpu] = {}
    types: dict[str, MachineType] = {}
    before = {each.name: each for each in known.cloud(cloud).types}
    for each in found:
        old = before.get(each.machine.name)
        gpu = old.gpu if old is not None else gpu_name(each.gpu, each.gpu_gib, {**known.gpus, **gpus})
        if gpu not in known.gpus and each.gpu_gib:
            gpus[gpu] = Gpu(memory_gib=max(1, round(each.gpu_gib)))
        changes: dict[str, object] = {"gpu": gpu}
        if old is not None and set(each.machine.markets) == set(BY_THE_HOUR):
            changes["markets"] = old.markets
        types[each.machine.name] = each.machine.model_copy(update=changes)
    return [types[name] for name in sorted(types)], gpus


def gpu_name(name: str, gib: float | None, known: Mapping[str, Gpu]) -> str:
    """Our name of a GPU: A100 with 40 GiB is A100-40GB. One with another memory than known gets it as a suffix."""
    base = "".join(name.split())
    same = {ours: gpu for ours, gpu in known.items() if ours == base or ours.startswith(f"{base}-")}
    if not same or gib is None:
        return base if base in known or not same else next(iter(same))
    nearest = min(same, key=lambda ours: abs(same[ours].memory_gib - gib))
    if abs(same[nearest].memory_gib - gib) <= _MEMORY_DIFFERS * gib:
        return nearest
    return f"{base}-{round(gib)}GB"


def text_of(cloud: str, source: str, types: Sequence[MachineType], gpus: Mapping[str, Gpu], at: float) -> str:
    """Return the file's text. Raises ValueError for a name that TOML would need quoting for."""
    lines = [
        f"# {source}, read {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC by `spotsupd catalogue refresh`.",
        "",
    ]
    if gpus:
        lines += ["[gpus]", *(f"{_bare(name)} = {{ memory_gib = {gpu.memory_gib} }}" for name, gpu in gpus.items()), ""]
    lines += [f"[{cloud}]", "types = [", *(f"    {{ {_fields(each)} }}," for each in types), "]", ""]
    text = "\n".join(lines)
    tomllib.loads(text)
    return text


def write(path: Path, text: str) -> None:
    """At once, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def _fields(machine: MachineType) -> str:
    default = MachineType(name=machine.name)
    found = []
    for name in type(machine).model_fields:
        value = getattr(machine, name)
        if name == "name" or value != getattr(default, name):
            found.append(f"{name} = {_value(value)}")
    return ", ".join(found)


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"{value:g}" if isinstance(value, float) else str(value)
        case tuple():
            return f"[{', '.join(_value(str(each)) for each in value)}]"
        case _:
            text = str(value)
            if not text.isprintable() or set(text) & set('"\\'):
                raise ValueError(f"{text!r} is not a name of a cloud's")
            return f'"{text}"'


def _bare(name: str) -> str:
    if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
        raise ValueError(f"{name!r} is not a name of a GPU")
    return name
