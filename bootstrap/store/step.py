"""The object store that the job's checkpoints go to: proven to take a write of this machine before it trains."""

from __future__ import annotations

import json
from hashlib import sha256

from bootstrap.decision import Decision, env_script, paths_on
from bootstrap.environment.step import python_of
from bootstrap.facts import Facts
from bootstrap.model import Run, Setup, Skip, Upload
from bootstrap.templates import fill

CHECK_S = 120
GRACE_S = 30.0


def store(facts: Facts, setup: Setup) -> Decision:
    """Write, read and delete an object with the machine's own credentials, once per boot, address and interpreter."""
    url = str(json.loads(setup.agent_config).get("checkpoints", ""))
    if "://" not in url:
        return Skip("checkpoints go to no object store")
    paths, python, env = paths_on(facts, setup), python_of(facts, setup), env_script(facts, setup)
    parts = (facts.boot_id, url, python, setup.trainer.sha256, sha256(env).hexdigest())
    marker = f"store-{sha256('|'.join(parts).encode()).hexdigest()[:32]}"
    if marker in facts.prepared:
        return Skip(f"{url} takes a write")
    script = fill(
        "store/check.sh",
        own=paths.own,
        prepared=paths.prepared,
        marker=marker,
        python=python,
        trainer=paths.trainer(setup.trainer),
        url=url,
        node=setup.node,
        limit_s=CHECK_S,
    )
    return (
        Upload("the environment", paths.env, 0o600, env),
        Run(f"write to {url}", script, CHECK_S + GRACE_S),
    )
