"""What environments are built from: requirements files and uv.lock, found in the code."""

from __future__ import annotations

import pytest
from spotsup.archive import Archive
from spotsup.errors import PackError

from bootstrap import lock_of
from bootstrap.environment.lock import MAX_BYTES, MAX_FILES
from tests.support.agents import packed


def code_of(**files: str) -> Archive:
    return packed({name.replace("__", "/").replace("_", "."): text.encode() for name, text in files.items()})


def test_a_lock_is_identified_by_all_that_it_includes() -> None:
    def lock(**files: str) -> str:
        found = lock_of(code_of(**files), "requirements.txt")
        assert found is not None
        return found.sha256

    first = lock(
        requirements_txt="torch\n-r more__base.txt\n".replace("__", "/"), more__base_txt="-c c.txt", more__c_txt="a==1"
    )
    same = lock(
        more__c_txt="a==1", more__base_txt="-c c.txt", requirements_txt="torch\n-r more/base.txt\n", train_py="x"
    )
    other = lock(requirements_txt="torch\n-r more/base.txt\n", more__base_txt="-c c.txt", more__c_txt="a==2")
    assert first == same != other
    assert lock_of(code_of(requirements_txt="torch"), "image") is None


@pytest.mark.parametrize(
    ("files", "wanted", "sentence"),
    [
        (
            {},
            "requirements.txt",
            r"`environment: requirements\.txt` needs requirements\.txt, which is not in the code",
        ),
        ({"r_txt": "-r ../x.txt"}, "r.txt", r"needs \.\./x\.txt, which is not in the code"),
        ({"r_txt": "torch\n-e ."}, "r.txt", r"r\.txt installs '-e \.' from the code itself; .* remove that line"),
        ({"r_txt": "./wheels/x.whl"}, "r.txt", "from the code itself"),
        ({"r_txt": "mine @ file:///home/me/mine"}, "r.txt", "from the code itself"),
        ({"pyproject_toml": ""}, "uv", r"needs uv\.lock at the top of the code"),
        ({"uv_lock": ""}, "uv", r"needs pyproject\.toml at the top of the code"),
        ({"uv_lock": "no toml", "pyproject_toml": ""}, "uv", r"uv\.lock is not valid TOML: .*; run `uv lock`"),
        (
            {"uv_lock": '[[package]]\nname = "b"\nsource = { editable = "../b" }', "pyproject_toml": ""},
            "uv",
            r"uv\.lock takes b from '\.\./b', which exists only on your computer",
        ),
        (
            {"r_txt": "torch==2.5.1+cu124  # ours\nnumpy"},
            "r.txt",
            r"r\.txt names torch 2\.5\.1\+cu124, and spotsup needs 2\.6 or newer",
        ),
        ({"r_txt": "-c c.txt\ntorch", "c_txt": "torch==2.1.* --hash=sha256:00"}, "r.txt", r"c\.txt names torch 2\.1,"),
        (
            {"uv_lock": '[[package]]\nname = "torch"\nversion = "2.4.0"', "pyproject_toml": ""},
            "uv",
            r"uv\.lock names torch 2\.4\.0, and spotsup needs 2\.6 or newer: name a newer one there",
        ),
        (
            {"uv_lock": '[[package]]\nname = "torch"\nversion = "2.5.1+cu124"', "pyproject_toml": ""},
            "uv",
            r"uv\.lock names torch 2\.5\.1\+cu124, and spotsup needs 2\.6 or newer: name a newer one there",
        ),
        ({"uv_lock": 'requires-python = "3.x"', "pyproject_toml": ""}, "uv", "`requires-python` '3.x', which is none"),
    ],
)
def test_code_without_what_its_environment_needs_is_refused(files: dict[str, str], wanted: str, sentence: str) -> None:
    with pytest.raises(PackError, match=sentence):
        lock_of(code_of(train_py="", **files), wanted)


def test_endless_lists_of_packages_are_refused() -> None:
    endless = {f"r{number}_txt": f"-r r{number + 1}.txt" for number in range(MAX_FILES + 1)}
    with pytest.raises(PackError, match=rf"r0\.txt includes more than {MAX_FILES} files"):
        lock_of(code_of(**endless), "r0.txt")
    with pytest.raises(PackError, match=rf"r\.txt has {MAX_BYTES + 1} bytes, which is not a list of packages"):
        lock_of(code_of(r_txt="#" * (MAX_BYTES + 1)), "r.txt")


def test_a_lock_may_name_the_project_itself() -> None:
    found = lock_of(
        code_of(uv_lock='[[package]]\nname = "mine"\nsource = { virtual = "." }\n', pyproject_toml=""), "uv"
    )
    assert found is not None
    assert (found.kind, found.file) == ("uv", "uv.lock")


@pytest.mark.parametrize(
    "line",
    [
        "torch",
        "torch==2.6.0",
        "torch==2.16.0",
        "torch>=2.1",
        "torchvision==0.20",
        "torch==2.2.2; sys_platform == 'win32'",
    ],
)
def test_a_torch_that_may_be_new_enough_is_accepted(line: str) -> None:
    assert lock_of(code_of(r_txt=line), "r.txt") is not None


def test_a_newer_torch_in_uv_lock_is_accepted() -> None:
    text = '[[package]]\nname = "torch"\nversion = "2.16.0"'
    assert lock_of(code_of(uv_lock=text, pyproject_toml=""), "uv") is not None


def test_what_needs_no_torch_may_name_any() -> None:
    assert lock_of(code_of(r_txt="torch==2.5.1"), "r.txt", torch=False) is not None


def test_a_lock_says_which_python_it_is_for() -> None:
    found = lock_of(code_of(uv_lock='requires-python = ">=3.11, <3.13"', pyproject_toml=""), "uv")
    assert found is not None
    assert found.requires_python == ">=3.11, <3.13"
