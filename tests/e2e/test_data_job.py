"""A data job on the local cloud: it survives the loss of its machine, reports its progress, and ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.bucket import bucket
from tools.stack import ROOT, Stack

pytestmark = pytest.mark.timeout(180)

AT_ONCE = 16  # files, of the example
JOB = """\
name: fill
kind: data
code: {code}
run: python copy_bucket.py --bucket $BUCKET --prefix train/ --out {out} && echo all is there
env: {BUCKET: "{url}"}
"""


def test_a_bucket_is_copied_over_the_loss_of_a_machine(stack: Stack, tmp_path: Path) -> None:
    objects = {f"train/{kind}/{number}.bin": bytes(1000) for kind in ("cat", "dog") for number in range(12)}
    out = tmp_path / "out put"
    with bucket(objects) as server:
        server.open.release(6)
        job = JOB.replace("{out}", f"'{out}'").replace("{url}", server.url)
        (tmp_path / "job.yaml").write_text(job.replace("{code}", str(ROOT / "trainer" / "examples")))
        submitted = stack.ctl("submit", str(tmp_path / "job.yaml"))
        assert submitted.returncode == 0, submitted.stderr

        stack.wait_for(lambda: (stack.ask("status", "fill")["progress_fraction"] or 0.0) > 0, 150.0, "some progress")
        stack.wait_for(lambda: len(server.served) == 6, 30.0, "some of it to be there")
        shown = stack.ctl("status", "fill").stdout
        assert "the command runs (round 1)" in shown
        assert " of 0.0 MB" in shown
        assert "%" in stack.ctl("list").stdout
        (node,) = stack.ask("status", "fill")["node_list"]
        stack.cloud("kill", node["id"])
        server.open.release(1000)

        stack.wait_for(lambda: stack.ask("status", "fill")["state"] == "succeeded", 90.0, "the job to end")
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*.bin")) == sorted(
        key.removeprefix("train/") for key in objects
    )
    assert not list(out.rglob(".*"))
    # As many as are copied at a time were under way when the machine was lost.
    assert len(server.served) <= len(objects) + AT_ONCE, "the next run went on where the last one stopped"
    done = stack.ask("status", "fill")
    assert (done["kind"], done["progress_fraction"], done["round"]) == ("data", 1.0, 2)
    stack.wait_for(lambda: "all is there" in stack.ctl("logs", "fill").stdout, 30.0, "the end of its log")
