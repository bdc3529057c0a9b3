"""Users' secrets: sealed so that nothing but the same installation opens them, and for nobody but their owner."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from supervisor.errors import CommandRefusedError, UsageError
from supervisor.identity import Identity
from supervisor.journal.codec import dump, load
from supervisor.sealed import MAX_BYTES, SecretRecord, check_name, check_value, opened, seal, values_of
from supervisor.spec import parse_spec

KEY, OTHER = Identity(b"s" * 32).secrets_key(), Identity(b"t" * 32).secrets_key()
NONCE = bytes(range(12))
VALUE = "hf-marked-secret"
PLAIN = SecretRecord("HF_TOKEN", "ann", "", 1.0, 2.0)
SEALED = seal(KEY, NONCE, "lab", PLAIN, VALUE.encode())
JOB = {"name": "job", "nodes": 1, "run": "train.py"}


def test_a_secret_is_opened_by_the_installation_that_sealed_it() -> None:
    assert opened(KEY, "lab", SEALED) == VALUE
    assert opened(KEY, "lab", load(SecretRecord, dump(SEALED), "key")) == VALUE
    assert VALUE not in repr(SEALED)
    assert VALUE.encode() not in dump(SEALED) + base64.b64decode(SEALED.sealed)
    assert seal(KEY, bytes(12), "lab", PLAIN, VALUE.encode()).sealed != SEALED.sealed


@pytest.mark.parametrize(
    ("key", "cluster", "record"),
    [
        (OTHER, "lab", SEALED),
        (KEY, "other", SEALED),
        (KEY, "lab", replace(SEALED, owner="bob")),
        (KEY, "lab", replace(SEALED, name="WANDB")),
        (KEY, "lab", replace(SEALED, sealed=SEALED.sealed[:-8] + "AAAAAAA=")),
        (KEY, "lab", replace(SEALED, sealed="")),
        (KEY, "lab", replace(SEALED, sealed="not base64")),
    ],
)
def test_it_is_opened_by_no_other_key_for_no_other_owner_and_under_no_other_name(
    key: bytes, cluster: str, record: SecretRecord
) -> None:
    with pytest.raises(CommandRefusedError, match=r"cannot be read with this installation's cluster\.key: .* sets it"):
        opened(key, cluster, record)


def test_a_job_gets_those_that_it_names_of_its_owner_alone() -> None:
    other = seal(KEY, bytes(12), "lab", replace(PLAIN, owner="bob", name="WANDB"), b"x")
    stored = [SEALED, other]
    assert values_of(KEY, "lab", "ann", ["HF_TOKEN"], stored) == {"HF_TOKEN": VALUE}
    assert values_of(KEY, "lab", "ann", [], stored) == {}
    with pytest.raises(CommandRefusedError, match=r"^ann has no secret WANDB: `spotsupctl secret set WANDB`$"):
        values_of(KEY, "lab", "ann", ["HF_TOKEN", "WANDB"], stored)
    with pytest.raises(CommandRefusedError, match=r"who is not known, has no secret A, nor B"):
        values_of(KEY, "lab", "", ["A", "B"], stored)


@pytest.mark.parametrize("value", ["", "a\0b", "x" * (MAX_BYTES + 1), "\ud800"])
def test_a_value_that_cannot_be_a_variables_is_refused_without_being_said(value: str) -> None:
    with pytest.raises(UsageError, match="the value of HF_TOKEN") as refused:
        check_value("HF_TOKEN", value)
    assert len(str(refused.value)) < 200
    assert check_value("HF_TOKEN", "é" * (MAX_BYTES // 2)) == ("é" * (MAX_BYTES // 2)).encode()


def test_a_job_file_names_variables_each_once() -> None:
    assert check_name("HF_TOKEN") == "HF_TOKEN"
    assert parse_spec({**JOB, "secrets": ["A", "B", "A"]}).secrets == ("A", "B")
    for wrong in (["1A"], ["A-B"], ["A/B"], [""], ["A" * 101], ["A B"]):
        with pytest.raises(UsageError, match="is no name of a secret"):
            parse_spec({**JOB, "secrets": wrong})
    with pytest.raises(UsageError, match="A is in `env`, too: leave it out of one of them"):
        parse_spec({**JOB, "secrets": ["A"], "env": {"A": "x"}})
