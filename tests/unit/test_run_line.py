"""`run` is a program and its words: what a shell would do with more is refused, and what it means is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.cli.submission import prepare
from supervisor.errors import UsageError
from supervisor.run_line import arguments_of


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("train.py --lr 0.1", ["train.py", "--lr", "0.1"]),
        ("  train.py\n", ["train.py"]),
        ("train.py \\\n  --lr 1 \\\n  --x\n", ["train.py", "--lr", "1", "--x"]),
        ("-m pkg.train --log x", ["-m", "pkg.train", "--log", "x"]),
        ("python train.py", ["train.py"]),
        ("python -u train.py", ["train.py"]),
        ("python3 -m pkg", ["-m", "pkg"]),
        ("torchrun train.py --nnodes 2", ["train.py", "--nnodes", "2"]),
        ("accelerate launch train.py --x", ["train.py", "--x"]),
        ("train.py --lr '$LR' '> a' \"a && b; c\" 'a\nb'", ["train.py", "--lr", "$LR", "> a", "a && b; c", "a\nb"]),
        ("train.py a\\ b \\$LR \\> '#'", ["train.py", "a b", "$LR", ">", "#"]),
        ("train.py model={a,b} a[0] x=~/a a#b 100$", ["train.py", "model={a,b}", "a[0]", "x=~/a", "a#b", "100$"]),
        ("train.py https://a/b?c=1 (a)", ["train.py", "https://a/b?c=1", "(a)"]),
        ("train.py --when 'it''s'", ["train.py", "--when", "its"]),
    ],
)
def test_a_program_and_its_words(run: str, words: list[str]) -> None:
    assert list(arguments_of(run)) == words


@pytest.mark.parametrize(
    ("run", "part"),
    [
        ("t.py --lr $LR", "it has $LR, which a shell would replace"),
        ("t.py ${OUT}/a", "it has ${OUT}"),
        ('t.py "$LR"', "it has $LR"),
        ("t.py $(date)", "it has $(date)"),
        ("t.py `date`", "it has `date`"),
        ("t.py $1", "it has $1"),
        ("t.py > log.txt 2>&1", "it has >, a redirection"),
        ("t.py 2>&1", "it has >"),
        ("t.py < in", "it has <"),
        ("t.py && echo done", "it has &, another command"),
        ("t.py || true", "it has |"),
        ("t.py | tee log", "it has |, a pipe"),
        ("t.py;ls", "it has ;, a second command"),
        ("t.py &", "it has &"),
        ("t.py # the first", "it has #, which begins a comment"),
        ("t.py\nt2.py", "it has several lines"),
        ("t.py --out ~/x", "it has ~, which a shell would replace"),
        ("~/t.py", "it has ~"),
        ("t.py --glob *.py", "it has *"),
        ("python -O t.py", "leave out python and its options"),
        ("torchrun --standalone t.py", "leave out torchrun and its options"),
        ("python -m torch.distributed.run t.py", "without torchrun and its options"),
        ("-m torch.distributed.launch t.py", "without torchrun and its options"),
        ("accelerate launch --multi_gpu t.py", "without accelerate and its options"),
        ("-m accelerate.commands.launch t.py", "without accelerate and its options"),
        ("deepspeed t.py", "without deepspeed and its options"),
        ("/opt/bin/mpirun -n 2 t.py", "without mpirun and its options"),
        ("srun t.py", "without srun and its options"),
        ("python3.11 t.py", "`environment` says which interpreter"),
        ("uv run t.py", "`environment` says what it runs in"),
        ("bash run.sh", "begin with the Python script that it starts"),
        ("./run.sh", "begin with the Python script that it starts"),
        ("job.sbatch", "begin with the Python script that it starts"),
        ("LR=1 python t.py", "it begins with LR=1"),
        ("export LR=1", "variables into `env`"),
        ("train.ipynb", "jupyter nbconvert --to script train.ipynb"),
        ("/home/me/t.py", "is an absolute path"),
        ("/bin/true", "is an absolute path"),
        ("t.py 'open", "No closing quotation"),
    ],
)
def test_what_only_a_shell_understands_is_refused_with_what_to_write(run: str, part: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the message is compared
        arguments_of(run)
    assert part in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("run", ["t.py", "-m t", "python -m pkg"])
def test_a_script_that_is_not_python_is_refused_before_anything_is_rented(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg").mkdir()
    for script in (tmp_path / "t.py", tmp_path / "pkg" / "__main__.py"):
        script.write_text("import re\nre.compile('\\d')\n")
    assert prepare(run.split(), {}).spec["run"] == run
    for script in (tmp_path / "t.py", tmp_path / "pkg" / "__main__.py"):
        script.write_text("import re\ndef f(:\n")
    with pytest.raises(UsageError, match=r"\.py, line 2: invalid syntax; Python 3\.\d+ cannot run it"):
        prepare(run.split(), {})


def test_a_module_that_is_not_in_the_code_may_be_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert prepare(["-m", "nanotron.train"], {}).spec["run"] == "-m nanotron.train"
