"""EC2 for tests: moto, and in front of it the behaviour that moto lacks.

Real boto3 clients talk to it. Beside moto it has: idempotency tokens by zone, full zones (HTTP 500), quotas,
throttling, spot requests, machines that take time to begin and end, listings that lag, ids that are not found yet,
interruptions with and without notice, notices without an interruption, lost, broken, wrong and missing answers, calls
that arrive twice, a clock that differs, wrong credentials and missing permissions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from moto.ec2.models import ec2_backends

from provisioners.aws.provisioner import AwsProvisioner
from provisioners.aws.settings import AwsSettings
from provisioners.base import Provisioner
from tests.clouds.aws_account import NEEDS
from tests.clouds.aws_described import against, asked
from tests.clouds.aws_ec2 import Ec2
from tests.clouds.aws_wire import Call, FakeAwsError, read_call
from tests.clouds.base import Answer, CloudServer, WireCloud
from tests.clouds.machines import Machines

FAULTS = {
    "throttled": FakeAwsError("RequestLimitExceeded", "Request limit exceeded."),
    "transient": FakeAwsError("Unavailable", "The service is unavailable. Please try again shortly."),
    "internal": FakeAwsError("InternalError", "An internal error has occurred"),
    "fatal": FakeAwsError("InvalidGroup.NotFound", "The security group 'sg-0' does not exist"),
    "full": FakeAwsError("InsufficientInstanceCapacity", "We currently do not have sufficient capacity"),
    "quota": FakeAwsError("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded"),
    "unheard-of": FakeAwsError("SomethingNew", "Never seen before"),
}
_CREDENTIALS = {
    "wrong": FakeAwsError("AuthFailure", "AWS was not able to validate the provided access credentials"),
    "expired": FakeAwsError("RequestExpired", "Request has expired."),
    # aws-cli#6676
    "clock": FakeAwsError(
        "SignatureDoesNotMatch",
        "Signature expired: 20260127T001427Z is now earlier than 20260127T014428Z (20260127T015928Z - 15 min.)",
    ),
}


_SERVICES = {"tagging": "tag"}  # where policies have another name than signatures
_DENIED = {"ec2": "UnauthorizedOperation", "iam": "AccessDenied", "s3": "AccessDenied"}


class Cloud(WireCloud):
    """`credentials`: good, wrong, expired, or clock (signed at a wrong time). `denied`: as "ec2:RunInstances".

    `not_enabled`: regions that the account has not opted in to. `away`: those whose every call fails.
    """

    faults = FAULTS
    launch = "RunInstances"
    # Tags come with the machine: where they are late it is not among what is filtered by them at all.
    young = frozenset({"ipAddress", "privateIpAddress", "launchTime", "placement", "instanceType", "stateReason"})

    def __init__(self, machines: Machines) -> None:
        for account in ec2_backends.values():
            for backend in list(account.values()):
                backend.reset()  # moto's state is global, and an earlier test may have left some
        self.ec2 = Ec2(machines)
        self.not_enabled: set[str] = set()
        self.away: set[str] = set()
        super().__init__(self.ec2.fleet)

    def counted(self) -> Counter[str]:
        """How often each action was called: "ec2:DescribeInstances"."""
        return Counter(f"{call.service}:{call.action}" for call in self.calls)

    def let_daemon_in(self) -> None:
        """By a rule of the default security group."""
        with self.fleet.lock:
            self.ec2.let_in("us-east-1")

    def read(self, environ: dict[str, Any], body: bytes) -> Call:
        """As the base says. A request that its description does not allow is no matter of a test's alone."""
        call = read_call(environ, body)
        wrong = asked(call.service, environ, body)
        self.complaints += wrong
        return replace(call, wrong=wrong) if wrong else call

    def answer(self, call: Call, fault: str) -> Answer:
        """As the base says."""
        return self.ec2.serve(call)

    def against(self, call: Call, answer: Answer) -> Iterable[str]:
        """As the base says."""
        return against(call.service, call.environ, call.action, answer)

    against_error = against

    def admit(self, call: Call) -> None:
        """As the base says."""
        if self.credentials in _CREDENTIALS:
            raise _CREDENTIALS[self.credentials]
        if call.region in self.away:
            raise FakeAwsError("Unavailable", "The server is overloaded and can't handle the request.")
        if call.region in self.not_enabled:
            # EC2's answer: steampipe-plugin-aws#75; the others', of the same kind: botocore/data, their error shapes.
            if call.service == "ec2":
                raise _CREDENTIALS["wrong"]
            code = "InvalidClientTokenId" if call.service == "sts" else "UnrecognizedClientException"
            raise FakeAwsError(code, "The security token included in the request is invalid.")
        if call.wrong:
            code = "InvalidParameterValue" if call.service == "ec2" else "ValidationException"
            raise FakeAwsError(code, call.wrong[0])
        for name in self.needed(call):
            if name in self.denied:
                # "Troubleshoot access denied error messages" (IAM guide); EC2 begins with a sentence of its own.
                first = "You are not authorized to perform this operation. " if call.service == "ec2" else ""
                why = f"is not authorized to perform: {name} because no identity-based policy allows the {name} action"
                code = _DENIED.get(call.service, "AccessDeniedException")
                raise FakeAwsError(code, f"{first}User: arn:aws:iam::123456789012:user/spotsup {why}")

    def needed(self, call: Call) -> list[str]:
        """As the base says."""
        service = _SERVICES.get(call.service, call.service)
        names = [f"{service}:{call.action}", *NEEDS.get(call.action, ())]
        if call.action in {"CreateNetworkInterface", "AllocateAddress"}:
            names += ["ec2:CreateTags"]
        if call.action == "RunInstances":
            names += ["ec2:CreateTags"] if call.tags("instance") else []
            names += ["ssm:GetParameters"] if call.form.get("ImageId", "").startswith("resolve:ssm:") else []
            names += ["iam:PassRole"] if any(name.startswith("IamInstanceProfile.") for name in call.form) else []
        return names


class Server(CloudServer):
    """EC2's server."""

    @property
    def environ(self) -> dict[str, str]:
        """The SDK signs requests with any key; the cloud's `credentials` is its verdict."""
        return {
            "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/nowhere",
            "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
            "MOTO_EC2_LOAD_DEFAULT_AMIS": "false",  # moto's own setting: hundreds of unused images
        }

    def settings(self, **given: Any) -> AwsSettings:
        """Of one region."""
        return AwsSettings(**{"regions": ("us-east-1",), "endpoint": self.url, **given})

    def provisioner(self, **given: Any) -> Provisioner:
        """EC2's."""
        return AwsProvisioner(self.settings(**given))
