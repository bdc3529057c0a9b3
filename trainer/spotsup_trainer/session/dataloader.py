"""A DataLoader of the program's, taken apart: its data set, and the arguments and options for a loader of a Session."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

from spotsup_trainer.session.course import SessionError

# Not `generator`: the order comes from `seed`, and workers' random numbers from the Session's.
_OPTIONS = (
    *("num_workers", "collate_fn", "pin_memory", "pin_memory_device", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "prefetch_factor", "persistent_workers"),
)


def taken_apart(loader: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """(arguments of Session.loader, options of DataLoader). Raises SessionError for what cannot be taken over."""
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise SessionError(
            f"{type(loader).__name__} has an __iter__ of its own, which session.loader() cannot take over: give it the "
            "data set, or session.wrap() the loader if that has state_dict() and load_state_dict()"
        )
    options = {name: value for name in _OPTIONS if (value := getattr(loader, name, None))}
    if not getattr(loader, "in_order", True):
        options["in_order"] = False
    if isinstance(loader.dataset, IterableDataset):
        return {}, options
    if loader.batch_size is None and loader.batch_sampler is None:
        raise SessionError(
            "this DataLoader has batch_size=None, so its data set makes the batches: give session.loader() a data set "
            "of single samples, or session.wrap() a loader with state_dict() and load_state_dict()"
        )
    if loader.batch_size is None:
        return {"batch_sampler": loader.batch_sampler}, options
    return {**_order(loader), "drop_last": loader.drop_last, "micro_batch": loader.batch_size}, options


def _order(loader: Any) -> dict[str, Any]:
    """`shuffle`, and `seed` where there is one."""
    sampler = loader.sampler
    of = getattr(sampler, "dataset" if type(sampler) is DistributedSampler else "data_source", None)
    if of is not None and len(of) == len(loader.dataset):
        if type(sampler) is DistributedSampler:
            return {"shuffle": sampler.shuffle, "seed": sampler.seed}
        if type(sampler) is SequentialSampler:
            return {"shuffle": False}
        if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(of):
            return {"shuffle": True}
    raise SessionError(
        f"this DataLoader's {type(sampler).__name__} cannot be taken over, because session.loader() gives each sample "
        "once per epoch, to any rank: give it the data set, and each step's samples of all ranks as batch_sampler="
    )
