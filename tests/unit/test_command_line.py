"""torchrun's options end where the program begins: its own words are never taken for torchrun's."""

from __future__ import annotations

import pytest
from spotsup_trainer.launcher.main import parse_command_line
from torch.distributed.run import get_args_parser

OPTIONS = {name: action for action in get_args_parser()._actions for name in action.option_strings}
PREFIXES = sorted({name[:length] for name in OPTIONS for length in range(2, len(name) + 1)})


@pytest.mark.parametrize("form", ["{0} x", "{0}=x", "-- {0}", "x {0}"])
def test_an_option_of_the_program_may_begin_as_one_of_torchruns(form: str) -> None:
    for option in PREFIXES:
        words = form.format(option).split()
        args = parse_command_line(["--nnodes", "2", "--nproc-per-node=3", "train.py", *words])
        assert (args.nnodes, args.nproc_per_node, args.module) == ("2", "3", False)
        assert (args.training_script, args.training_script_args) == ("train.py", words)


def test_each_option_of_torchrun_may_stand_before_the_program() -> None:
    for option in OPTIONS.keys() - {"-h", "--help"}:
        action = OPTIONS[option]
        value = str(next(iter(action.choices))) if action.choices else "1"
        for given in [[option]] if action.nargs == 0 else [[option, value], [f"{option}={value}"]]:
            args = parse_command_line([*given, "-m", "pkg.train", option])
            assert args.module
            assert (args.training_script, args.training_script_args) == ("pkg.train", [option])


@pytest.mark.parametrize("words", [["--nproc-per", "3", "a.py"], ["--", "a.py"], ["a.py"]])
def test_options_may_be_abbreviated_and_end_with_two_dashes(words: list[str]) -> None:
    assert parse_command_line(words).training_script == "a.py"


@pytest.mark.parametrize("words", [["--unknown", "a.py"], ["--log", "a.py"], ["--nnodes"], []])
def test_words_before_the_program_that_torchrun_does_not_know_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_command_line(words)
