"""Shell templates: every hole is filled with a quoted value."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootstrap import templates
from bootstrap.model import shell_path
from bootstrap.templates import ROOT, Value, fill

FILES = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.sh")}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Templates of the test's own."""
    monkeypatch.setattr(templates, "ROOT", tmp_path)
    templates._template.cache_clear()
    return tmp_path


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("plain", "plain"),
        ("", "''"),
        ("it's $HOME", "'it'\"'\"'s $HOME'"),
        (30, "30"),
        (0.5, "0.5"),
        (1800.0, "1800"),
        (True, "true"),
        (shell_path("~/a b"), "\"$HOME\"/'a b'"),
        (["a b", 2], "'a b' 2"),
        ((), ""),
    ],
)
def test_a_hole_is_filled_with_quoted_words(folder: Path, value: Value, words: str) -> None:
    (folder / "x.sh").write_text("set -- @values@\n")
    assert fill("x.sh", values=value) == f"set -- {words}\n"


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_whatever_a_value_holds_it_stays_one_word(value: str) -> None:
    assert shlex.split(fill("agent/collect.sh", logs=[value], lines=3))[:3] == ["set", "--", value]


def test_a_hole_without_a_value_and_a_value_without_a_hole_are_refused(folder: Path) -> None:
    (folder / "x.sh").write_text("user=@user@\n")
    with pytest.raises(
        ValueError, match=r"x\.sh: holes without a value: \['user'\]; values without a hole: \['other'\]"
    ):
        fill("x.sh", other="1")


@pytest.mark.parametrize("text", ['echo "for @user@ s"', "a=x@user@", "a=@user@x", "'@user@'"])
def test_a_hole_that_is_not_a_word_of_its_own_is_refused(folder: Path, text: str) -> None:
    (folder / "x.sh").write_text(f"{text}\n")
    with pytest.raises(ValueError, match=r"x\.sh: a hole is not a word of its own in `"):
        fill("x.sh", user="u")


def test_included_files_and_their_holes_are_part_of_a_template_and_directives_are_not(folder: Path) -> None:
    (folder / "shell").mkdir()
    (folder / "shell" / "f.sh").write_text("# shellcheck disable=SC2034\nlimit_s=@limit_s@\n")
    (folder / "a").mkdir()
    (folder / "a" / "x.sh").write_text("#!/bin/sh\n. ../shell/f.sh\n    # shellcheck source=/dev/null\n. /etc/env\n")
    assert fill("a/x.sh", limit_s=3) == "#!/bin/sh\nlimit_s=3\n. /etc/env\n"


@pytest.mark.parametrize("name", sorted(FILES))
def test_each_hole_of_a_template_is_a_word_of_its_own(name: str) -> None:
    text, holes = templates._template(name)
    assert "@" in fill(name, **dict.fromkeys(holes, "@")) if holes else text == fill(name)
