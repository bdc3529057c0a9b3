"""What may be forgotten, so that a job that runs for weeks, on thousands of nodes in turn, leaves little in etcd."""

from __future__ import annotations

from supervisor.model import NodeState
from supervisor.planner.draft import Draft


def forget_old(draft: Draft) -> None:
    """Drop records of nodes that are long gone, and the words of all that are gone. Old events go with each commit."""
    _delete_keys(draft)
    gone = draft.in_states(NodeState.GONE)
    for node in gone[: max(0, len(gone) - draft.rules.gone_kept)]:
        if not draft.full:
            draft.forget(node)


def _delete_keys(draft: Draft) -> None:
    """Nobody asks for them any more. An agent's last word may come late, so they are looked for again and again."""
    view, keys = draft.view, draft.keys
    for key, nodes in ((keys.tombstone, view.tombstones), (keys.notice, view.notices), (keys.ended, view.exits)):
        for node in sorted(nodes):
            known = draft.nodes.get(node)
            if (known is None or known.state is NodeState.GONE) and not draft.full:
                draft.delete_key(key(draft.job.name, node))
