"""The README's job, for rented machines."""

from __future__ import annotations

import json

from tests.acceptance.rented import TYPE
from tests.acceptance.stock import REQUIREMENTS
from tests.support.s3 import S3

# What a rented cloud wants beyond the job of the README: a type, torch, a place for checkpoints. `desired` is 2, for
# the computer's sake.
JOB = """\
name: {name}
nodes: {nodes}
code: examples
run: char_transformer.py --steps {steps} --step-time {step_s} --log-every 1
limits: {{hours: 2, app_failures: 3}}
resources: {{instance_types: [{type}]}}
environment: requirements.txt
checkpoints: s3://{bucket}/jobs
env: {environ}
"""


def job_folder(name: str, nodes: str, steps: int, step_s: float, s3: S3) -> str:
    """A script that makes the folder `job` on a host where the examples are at /srv/examples."""
    environ = s3.environ | {"AWS_ENDPOINT_URL": s3.url, "GLOO_SOCKET_IFNAME": "host0", "OMP_NUM_THREADS": "1"}
    job = JOB.format(
        name=name,
        nodes=nodes,
        steps=steps,
        step_s=step_s,
        type=TYPE,
        bucket=s3.bucket,
        environ=json.dumps(environ),
    )
    requirements = "\n".join(REQUIREMENTS)
    return (
        "mkdir -p job && cp -r /srv/examples job/\n"
        f"cat >job/job.yaml <<'END'\n{job}END\n"
        f"cat >job/examples/requirements.txt <<'END'\n{requirements}\nEND\n"
    )
