"""Where a job's checkpoints go, and when they would end with its nodes. Pure."""

from __future__ import annotations

from spotsup_trainer.objects import url as urls

from supervisor.spec import NO_CHECKPOINTS, JobSpec

_REMEDY = (
    'add a writable file system (`storage: [{mount: /mnt/out, nfs: "SERVER:/PATH"}]`), name an object store '
    "(`checkpoints: s3://BUCKET/PREFIX`), or write `checkpoints: none` if the program keeps its own, or may start over "
    "after each lost node"
)


def path_of(spec: JobSpec, task_id: str) -> str:
    """Return where one run of a job keeps its checkpoints, in a folder of its own, or an address; "" if nowhere.

    Without shared storage it is relative to the folder that all machines of its cloud share.
    """
    if spec.checkpoints == NO_CHECKPOINTS or spec.kind == "data":
        return ""
    if spec.checkpoints:
        return f"{spec.checkpoints}/{task_id}"
    return f"{spec.shared}/spotsup/{task_id}/checkpoints" if spec.shared else f"{task_id}/checkpoints"


def output_of(spec: JobSpec, task_id: str, *, rented: bool) -> str:
    """Return the folder of one run for what its program writes besides, such as curves; "" if nothing there would
    outlive a node. Relative as in path_of. `rented`: machines share no folder but the job's storage.
    """
    if spec.kind == "data" or (rented and not spec.shared):
        return ""
    return f"{spec.shared}/spotsup/{task_id}/output" if spec.shared else f"{task_id}/output"


def lost_with_nodes(spec: JobSpec) -> str:
    """Return why this job's checkpoints would end with its rented nodes, and what to write instead; "" if they would
    not."""
    if spec.kind == "data" or spec.checkpoints == NO_CHECKPOINTS or urls.is_url(spec.checkpoints):
        return ""
    outlive = [each.mount for each in spec.mounted if each.mode == "rw" and not each.scratch]
    if not spec.checkpoints:
        return "" if outlive else f"its checkpoints would end with its nodes: {_REMEDY}"
    if any(f"{spec.checkpoints}/".startswith(f"{mount}/") for mount in outlive):
        return ""
    where = f"`checkpoints` is {spec.checkpoints}, which is on none of its shared `storage`, and ends with its node"
    return f"{where}: {_REMEDY}"
