"""The Fault Injection Service for tests: moto's templates and experiments, and their effect on spot instances.

Source: "AWS FIS actions reference", aws:ec2:send-spot-instance-interruptions: an interruption notice at once, and the
end after `durationBeforeInterruption`, two minutes at least.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.fis.models import fis_backends

from tests.clouds.aws_instances import Instances
from tests.clouds.aws_wire import Call, FakeAwsError
from tests.clouds.base import Answer

INTERRUPT = "aws:ec2:send-spot-instance-interruptions"
MIN_S = 120.0


class Faults:
    """Experiments on the instances of an account."""

    def __init__(self, fleet: Instances, by_moto: Callable[[Call], Answer]) -> None:
        self._fleet = fleet
        self._by_moto = by_moto
        self.handlers: dict[str, Callable[[Call], Answer]] = {"StartExperiment": self._start}

    def _start(self, call: Call) -> Answer:
        answer = self._by_moto(call)
        if answer.status != 200:
            return answer
        name = json.loads(answer.payload)["experiment"]["experimentTemplateId"]
        template = fis_backends[DEFAULT_ACCOUNT_ID][call.region].get_experiment_template(name)
        for action in template["actions"].values():
            if action["actionId"] != INTERRUPT:
                raise FakeAwsError("ValidationException", f"this test cloud does not know {action['actionId']}")
            after_s = _seconds(action["parameters"]["durationBeforeInterruption"])
            self._interrupt(call.region, template["targets"][action["targets"]["SpotInstances"]], after_s)
        return answer

    def _interrupt(self, region: str, target: Mapping[str, Any], after_s: float) -> None:
        if target["resourceType"] != "aws:ec2:spot-instance":
            raise FakeAwsError("ValidationException", f"{INTERRUPT} has no targets of type {target['resourceType']}")
        wanted: Mapping[str, str] = target["resourceTags"]
        for each in self._fleet.alive():
            if each.region == region and each.spot is not None and wanted.items() <= each.tags.items():
                self._fleet.preempt(each.name, after_s)


def _seconds(duration: str) -> float:
    match = re.fullmatch(r"PT(\d+)M", duration)
    if match is None or int(match[1]) * 60 < MIN_S:
        raise FakeAwsError("ValidationException", f"durationBeforeInterruption {duration!r} is not PT2M to PT15M")
    return int(match[1]) * 60.0
