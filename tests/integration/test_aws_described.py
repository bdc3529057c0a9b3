"""What AWS's own description does not allow is found in every request and answer of the test cloud, with its document.

Each right one, of the same form, has no complaint.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.clouds.aws_described import against, asked
from tests.clouds.base import Answer, wire_cloud

EC2, IAM, SSM = "ec2 2016-11-15", "iam 2010-05-08", "ssm 2014-11-06"
S3, EFS = "s3 2006-03-01", "efs 2015-02-01"
RUN = "Action=RunInstances&Version=2016-11-15&MinCount=1&MaxCount=1"
ROLE = "Action=CreateRole&Version=2010-05-08&RoleName=nodes&AssumeRolePolicyDocument={}"
PARAMETER = "AmazonSSM.GetParameter"
TAGGING = "<Tagging><TagSet><Tag><Key>team</Key><Value>vision</Value></Tag></TagSet></Tagging>"


@dataclass(frozen=True)
class Asked:
    """A request: its service, what is sent, and where to."""

    service: str
    body: str = ""
    path: str = "POST /"
    target: str = ""

    @property
    def environ(self) -> dict[str, str]:
        """As WSGI has it."""
        method, _, path = self.path.partition(" ")
        path, _, query = path.partition("?")
        found = {"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query}
        return {**found, "HTTP_X_AMZ_TARGET": self.target} if self.target else found

    def complaints(self) -> list[str]:
        """Of the request."""
        return asked(self.service, self.environ, self.body.encode())


def ec2(more: str, all_before: str = RUN) -> Asked:
    return Asked("ec2", f"{all_before}{more}")


def iam(more: str) -> Asked:
    return Asked("iam", f"{ROLE}{more}")


def ssm(body: dict[str, Any], target: str = PARAMETER) -> Asked:
    return Asked("ssm", json.dumps(body), target=target)


def tagging(body: str = TAGGING, query: str = "tagging") -> Asked:
    return Asked("s3", body, f"PUT /bucket?{query}")


def system(**body: Any) -> Asked:
    raw = json.dumps({"CreationToken": "a", **body})
    return Asked("elasticfilesystem", raw, "POST /2015-02-01/file-systems")


@pytest.mark.parametrize(
    "right",
    [
        ec2(
            "&TagSpecification.1.ResourceType=instance&TagSpecification.1.Tag.1.Key=a&TagSpecification.1.Tag.1.Value=b"
        ),
        ec2("&InstanceMarketOptions.MarketType=spot&InstanceType=g4dn.xlarge&DryRun=true"),
        ec2("&InstanceType=newer.xlarge"),
        iam("&Tags.member.1.Key=team&Tags.member.1.Value=vision&MaxSessionDuration=3600"),
        ssm({"Name": "/a", "WithDecryption": True}),
        tagging(),
        Asked("s3", path="GET /bucket?list-type=2&prefix=a"),
        Asked("s3", path="PUT /bucket/a/key?partNumber=1&uploadId=u"),
        system(PerformanceMode="generalPurpose", Tags=[{"Key": "a", "Value": "b"}]),
    ],
)
def test_a_right_request_has_no_complaint(right: Asked) -> None:
    assert right.complaints() == []


@pytest.mark.parametrize(
    ("wrong", "document", "why"),
    [
        # Members that there are not.
        (ec2("&Colour=red"), EC2, "Colour: RunInstancesRequest has no member Colour"),
        (ec2("&TagSpecification.1.Tag.1.Kee=a"), EC2, "TagSpecifications.Tags.Kee: Tag has no member Kee"),
        (iam("&Colour=red"), IAM, "Colour: CreateRoleRequest has no member Colour"),
        (iam("&Tags.1.Key=team"), IAM, "Tags: tagListType consists of members, and not of ['1']"),
        (ssm({"Name": "/a", "Colour": 1}), SSM, "Colour: GetParameterRequest has no member Colour"),
        (tagging(TAGGING.replace("</Value>", "</Value><Kee>a</Kee>")), S3, "TagSet.Kee: Tag has no member Kee"),
        (tagging(query="tagging&colour=red"), S3, "colour: PutBucketTagging has no querystring colour"),
        # Values.
        (ec2("&InstanceMarketOptions.MarketType=sopt"), EC2, "'sopt' is none of MarketType's values"),
        (system(PerformanceMode="best"), EFS, "PerformanceMode: 'best' is none of PerformanceMode's values"),
        (system(CreationToken="a" * 65), EFS, "CreationToken has 1 to 64, and not 65 characters"),
        (iam("&MaxSessionDuration=60"), IAM, "roleMaxSessionDurationType has 3600 to 43200, and not 60 as a value"),
        (iam("&Path=nodes"), IAM, "Path: 'nodes' is not as pathType's pattern"),
        (ec2("&DryRun=yes"), EC2, "DryRun: 'yes' is no boolean"),
        (ec2("&InstanceType.1=g4dn.xlarge"), EC2, "InstanceType is a string, and has no members"),
        (
            ec2("&SecurityGroupId.2=sg-1"),
            EC2,
            "SecurityGroupIds: SecurityGroupIdStringList is a list, with the numbers",
        ),
        (ssm({"Name": 1}), SSM, "Name: 1 is no string"),
        # What is required.
        (ec2("", "Action=RunInstances&Version=2016-11-15&MinCount=1"), EC2, "lacks MaxCount, which is required"),
        (iam("&Tags.member.1.Key=a"), IAM, "Tags.Value: Tag lacks Value, which is required"),
        (ssm({}), SSM, "Name: GetParameterRequest lacks Name, which is required"),
        (tagging("<Tagging/>"), S3, "TagSet: Tagging lacks TagSet, which is required"),
        # Operations.
        (ec2("", "Action=RunInstance&Version=2016-11-15"), EC2, "there is no operation RunInstance"),
        (ec2("", "Action=DescribeInstances&Version=2016-11-14"), EC2, "Version is '2016-11-14'"),
        (ssm({"Name": "/a"}, "AmazonSSM.GetParam"), SSM, "there is no operation AmazonSSM.GetParam"),
        (ssm({"Name": "/a"}, "SSM.GetParameter"), SSM, "there is no operation SSM.GetParameter"),
        (Asked("elasticfilesystem", path="GET /2015-02-02/file-systems"), EFS, "no operation GET /2015-02-02/file-sys"),
    ],
)
def test_what_a_request_has_wrong_is_named_with_its_document(wrong: Asked, document: str, why: str) -> None:
    (complaint,) = wrong.complaints()
    assert "'s request, by botocore's model of " in complaint
    assert document in complaint
    assert why in complaint


# -- answers -------------------------------------------------------------------------------------------------


def described(instance: str, name: str = "DescribeInstances", beside: str = "") -> tuple[str, str, str]:
    set_ = f"<reservationSet><item><instancesSet><item>{instance}</item></instancesSet></item></reservationSet>"
    return "ec2", name, f"<{name}Response><requestId>1</requestId>{set_}{beside}</{name}Response>"


def role(inner: str, *, role_id: str = "AROAEXAMPLE0123456789") -> tuple[str, str, str]:
    body = f"<Path>/</Path><RoleName>n</RoleName><RoleId>{role_id}</RoleId>{inner}"
    body += "<Arn>arn:aws:iam::123456789012:role/n</Arn>"
    return "iam", "GetRole", f"<GetRoleResponse><GetRoleResult><Role>{body}</Role></GetRoleResult></GetRoleResponse>"


def parameter(inner: dict[str, Any]) -> tuple[str, str, str]:
    return "ssm", "GetParameter", json.dumps({"Parameter": {"Name": "/a", **inner}})


CREATED = "<CreateDate>2026-01-01T00:00:00Z</CreateDate>"
GOOD = (
    "<instanceId>i-1</instanceId><instanceType>g4dn.xlarge</instanceType><launchTime>2026-01-01T00:00:00Z</launchTime>"
)


def wrong_of(service: str, action: str, body: str, *, status: int = 200, path: str = "POST /") -> list[str]:
    return against(service, Asked(service, path=path).environ, action, Answer(status, body.encode()))


@pytest.mark.parametrize(
    "right",
    [described(GOOD), described(GOOD, beside="<nextToken>2</nextToken>"), role(CREATED), parameter({"Version": 1})],
)
def test_a_right_answer_has_no_complaint(right: tuple[str, str, str]) -> None:
    assert wrong_of(*right) == []


@pytest.mark.parametrize(
    ("wrong", "document", "why"),
    [
        (described("<colour>red</colour>"), EC2, "Reservations.Instances.colour: Instance has no member colour"),
        (described("<instanceId>i-1</instanceId>" * 2), EC2, "Reservations.Instances: instanceId is there twice"),
        (described(GOOD, beside="<next>2</next>"), EC2, "next: DescribeInstancesResult has no member next"),
        (described(GOOD.replace("xlarge", "small")), EC2, "'g4dn.small' is none of InstanceType's values"),
        (described(GOOD.replace("T00", " 00")), EC2, "LaunchTime: '2026-01-01 00:00:00Z' is no timestamp"),
        (described(GOOD, "DescribeInstance"), EC2, "there is no operation DescribeInstance"),
        (("ec2", "DescribeInstances", "<html/>"), EC2, "its root is DescribeInstancesResponse, and not html"),
        (("ec2", "DescribeInstances", "welcome"), EC2, "it cannot be read"),
        (role(""), IAM, "Role.CreateDate: Role lacks CreateDate, which is required"),
        (role(CREATED, role_id="AROA"), IAM, "Role.RoleId: idType has 16 to 128, and not 4 characters"),
        (role(f"{CREATED}<Tags><Tag/></Tags>"), IAM, "Role.Tags: tagListType consists of elements member"),
        (("iam", "GetRole", "<GetRoleResponse/>"), IAM, "it lacks GetRoleResult"),
        (parameter({"Colour": 1}), SSM, "Parameter.Colour: Parameter has no member Colour"),
        (parameter({"Type": "Text"}), SSM, "Parameter.Type: 'Text' is none of ParameterType's values"),
        (parameter({"Value": None}), SSM, "Parameter.Value: None is no string"),
        (parameter({"LastModifiedDate": "2026-01-01"}), SSM, "'2026-01-01' is no timestamp"),
    ],
)
def test_what_an_answer_has_wrong_is_named_with_its_document(
    wrong: tuple[str, str, str], document: str, why: str
) -> None:
    complaint = wrong_of(*wrong)[0]
    assert "'s answer, by botocore's model of " in complaint
    assert document in complaint
    assert why in complaint


@pytest.mark.parametrize(
    ("error", "status", "why"),
    [
        ({"__type": "ParameterNotFound", "message": "none"}, 400, ""),
        ({"__type": "DocumentLimitExceeded"}, 400, "GetParameter has no error DocumentLimitExceeded"),
        ({"message": "none"}, 400, "it has no code"),
        ({"__type": "ParameterNotFound", "colour": "red"}, 400, "ParameterNotFound has no member colour"),
    ],
)
def test_errors_are_those_of_the_operation(error: dict[str, str], status: int, why: str) -> None:
    found = wrong_of("ssm", "GetParameter", json.dumps(error), status=status)
    assert why in "".join(found)
    assert bool(found) is bool(why)


def test_an_error_has_its_status() -> None:
    body = json.dumps({"__type": "FileSystemNotFound", "ErrorCode": "FileSystemNotFound"})
    path = "GET /2015-02-01/file-systems"
    assert wrong_of("elasticfilesystem", "", body, status=404, path=path) == []
    (complaint,) = wrong_of("elasticfilesystem", "", body, status=400, path=path)
    assert complaint.endswith("the status of FileSystemNotFound is 404, and not 400")


def test_a_test_whose_requests_are_wrong_fails_even_where_nobody_looks_at_the_refusal() -> None:
    with (
        pytest.raises(AssertionError, match="Colour: RunInstancesRequest has no member Colour"),
        wire_cloud("aws") as server,
        pytest.raises(HTTPError, match="400"),
    ):
        urlopen(server.url, f"{RUN}&Colour=red".encode(), timeout=30)  # noqa: S310 - our own, on loopback
