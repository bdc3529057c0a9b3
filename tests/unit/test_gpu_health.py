"""What the agent makes of the kernel's log and of nvidia-smi on their worst day. Texts as public logs have them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from spotsup_trainer.agent.gpu_verdict import (
    HEALTHY,
    MAX_REASON_CHARACTERS,
    XIDS,
    Answer,
    Verdict,
    judge_hangs,
    judge_rows,
    judge_smi,
    judge_xids,
    read_xids,
)
from spotsup_trainer.agent.gpu_watch import GpuWatch, KernelLog
from spotsup_trainer.launcher.gpu_check import ask_agent
from spotsup_trainer.launcher.run_dir import RunDir

from bootstrap.gpu.step import UNHEALTHY_XIDS

TWO = "0, 00000000:00:1E.0, 0\n1, 00000000:00:1F.0, 0\n"
FELL = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def test_bootstrap_refuses_what_the_agent_calls_unhealthy() -> None:
    assert {number: text for number, (effect, text) in XIDS.items() if effect != "application"} == UNHEALTHY_XIDS


@pytest.mark.parametrize(
    ("line", "healthy", "fatal", "says"),
    [
        (FELL, False, True, "the GPU at 0000:3b:00: Xid 79, fell off the bus"),
        ("NVRM: Xid (PCI:0000:3b:00): 48, pid=4121, DBE (double bit error)", False, False, "Xid 48, uncorrectable"),
        ("NVRM: Xid (0000:03:00): 95, pid=7, Uncontained: LTC TAG (0x2,0x0)", False, False, "Xid 95, uncontained"),
        ("NVRM: Xid (PCI:0000:01:00): 119, pid=9, Timeout waiting for RPC from GSP!", False, False, "Xid 119"),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=4121, MMU Fault: ENGINE GRAPHICS", True, False, ""),
        ("NVRM: Xid (PCI:0000:3b:00): 13, pid=4121, Graphics SM Warp Exception", True, False, ""),
        ("NVRM: Xid (PCI:0000:3b:00): 45, pid=4121, Ch 00000008", True, False, ""),
        ("NVRM: Xid (PCI:0000:3b:00): 9999, something of a later driver", True, False, ""),
        (
            "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            *(False, False, "Xid 154, GPU Reset Required"),
        ),
        (
            "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)",
            *(False, True, "Xid 154, OS Reboot"),
        ),
        (
            "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
            *(True, False, ""),
        ),
        ("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 46", True, False, ""),
        ("usb 1-1: NVRM Xid 79 is a nice name for a keyboard", True, False, ""),
    ],
)
def test_what_an_xid_means(line: str, healthy: bool, fatal: bool, says: str) -> None:
    verdict = judge_xids(read_xids(f"[ 12.5] something else\n{line}\n"))
    assert (verdict.healthy, verdict.fatal) == (healthy, fatal)
    assert says in verdict.reason


def test_the_worst_of_several_xids_counts() -> None:
    lines = f"NVRM: Xid (PCI:0000:3b:00): 45, pid=1\nNVRM: Xid (PCI:0000:3b:00): 74, pid=1\n{FELL}\n"
    assert judge_xids(read_xids(lines)).xid == 79
    assert judge_xids(()) == HEALTHY


@pytest.mark.parametrize(
    ("status", "output", "expected"),
    [
        (0, TWO, HEALTHY),
        (0, "0, 00000000:00:1E.0, [N/A]\n1, 00000000:00:1F.0, [Not Supported]\n", HEALTHY),
        (0, TWO.splitlines()[0], "nvidia-smi finds 1 of 2 GPUs"),
        (0, TWO.replace("1F.0, 0", "1F.0, 3"), "GPU 1: 3 uncorrected memory errors"),
        (0, TWO.replace("1F.0, 0", "1F.0, [Unknown Error]"), "GPU 1: nvidia-smi says [Unknown Error]"),
        (0, TWO.replace("1F.0, 0", "1F.0, ERR!"), "GPU 1: nvidia-smi says ERR!"),
        (0, TWO.replace("1F.0, 0", "1F.0, [GPU requires reset]"), "GPU 1: nvidia-smi says [GPU requires reset]"),
        (6, "No devices were found\n", "No devices were found"),
        (0, "No devices were found\n", "No devices were found"),
        (
            *(15, "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system"),
            "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.",
        ),
        (255, "Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error\n", "Unknown Error"),
        (9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "communicate"),
        (18, "Failed to initialize NVML: Driver/library version mismatch\n", "version mismatch"),
        (255, "Failed to initialize NVML: Unknown Error\n", "Unknown Error"),
        # What says nothing about the GPUs.
        (4, "Failed to initialize NVML: Insufficient Permissions\n", None),
        (127, "nvidia-smi: error while loading shared libraries: libnvidia-ml.so.1", None),
        (2, 'Field "pci.bus_id" is not a valid field to query.\n', None),
        (0, "\xff\xfe garbage \x00", "nvidia-smi finds 0 of 2 GPUs"),
    ],
)
def test_what_nvidia_smi_means(status: int, output: str, expected: Verdict | str | None) -> None:
    verdict = judge_smi(2, Answer(status, output))
    if isinstance(expected, str):
        assert verdict is not None
        assert not verdict.healthy
        assert expected in verdict.reason
        assert verdict.fatal == ("GPU is lost" in output)
    else:
        assert verdict == expected


def test_rows_that_wait_for_a_reset_or_cannot_be_remapped() -> None:
    assert judge_rows(Answer(0, "00000000:3B:00.0, No, No\n00000000:86:00.0, 0, 0\n")) == HEALTHY
    assert "waits for a reset" in judge_rows(Answer(0, "00000000:3B:00.0, No, No\n00000000:86:00.0, Yes, No\n")).reason
    assert "remapping of a memory row failed" in judge_rows(Answer(0, "00000000:3B:00.0, 0, 1\n")).reason
    assert judge_rows(Answer(0, "00000000:3B:00.0, [N/A], [N/A]\n")) == HEALTHY
    assert judge_rows(Answer(2, 'Option "--query-remapped-rows" is not recognized.')) == HEALTHY


def test_an_nvidia_smi_that_hangs_once_may_only_be_slow() -> None:
    assert judge_hangs(1) == HEALTHY
    assert not judge_hangs(2).healthy
    assert not judge_hangs(2).fatal, "what trains goes on until it is replaced"


# -- the kernel's log ----------------------------------------------------------------------------------------


def no_program(_command: Sequence[str], _limit_s: float) -> Answer | None:
    raise FileNotFoundError("journalctl")


def test_without_dev_kmsg_the_journal_is_read_and_only_what_is_new(tmp_path: Path) -> None:
    now = [1000.0]
    commands: list[Sequence[str]] = []

    def journal(command: Sequence[str], _limit_s: float) -> Answer:
        commands.append(command)
        return Answer(0, f"{FELL}\n")

    found = KernelLog(journal, str(tmp_path / "missing"), lambda: now[0])
    now[0] = 1060.0
    assert [each.number for each in found.read()] == [79]
    now[0] = 1120.0
    found.read()
    assert [command[-1] for command in commands] == ["--since=@995", "--since=@1055"]
    assert commands[0][0] == "journalctl"


HINT = "Hint: You are currently not seeing messages from other users and the system.\n-- No entries --\n"


@pytest.mark.parametrize(
    "answer",
    [no_program, lambda *_: None, lambda *_: Answer(1, "No journal files were opened"), lambda *_: Answer(0, HINT)],
)
def test_a_kernel_log_that_may_not_be_read_is_no_evidence(
    tmp_path: Path, answer: Callable[[Sequence[str], float], Answer | None]
) -> None:
    found = KernelLog(answer, str(tmp_path / "missing"))
    assert found.read() == ()
    assert not found.readable


def test_records_of_dev_kmsg_are_read_one_by_one_and_overwritten_ones_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kmsg").write_text("")
    found = KernelLog(no_program, str(tmp_path / "kmsg"))
    replies: list[bytes | OSError] = [
        BrokenPipeError(),
        b"6,1,2,-;audit: something\n",
        f"4,2,3,-;{FELL}\n SUBSYSTEM=pci\n".encode(),
        BlockingIOError(),
    ]

    def read(_file: int, _size: int) -> bytes:
        reply = replies.pop(0)
        if isinstance(reply, OSError):
            raise reply
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(os, "read", read)
        assert [each.number for each in found.read()] == [79]
    found.close()


# -- the watch -----------------------------------------------------------------------------------------------


class FakeSmi:
    """Answers in turn, the last one for ever; None hangs, an exception is raised."""

    def __init__(self, *answers: Answer | Exception | None) -> None:
        self.answers = list(answers)
        self.limits_s: list[float] = []

    def __call__(self, command: Sequence[str], limit_s: float) -> Answer | None:
        if any("remapped" in part for part in command):
            return Answer(2, "")
        self.limits_s.append(limit_s)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def watch(tmp_path: Path, smi: FakeSmi, journal: str = "", **more: float) -> tuple[GpuWatch, list[Verdict], RunDir]:
    published: list[Verdict] = []
    run_dir = RunDir(tmp_path / "run")
    log = KernelLog(lambda *_: Answer(0, journal), str(tmp_path / "no-kmsg"))
    return GpuWatch(2, run_dir, published.append, run=smi, kernel_log=log, **more), published, run_dir


def test_the_kernels_log_is_enough_where_nvidia_smi_hangs(tmp_path: Path) -> None:
    smi = FakeSmi(None)
    checked, *_ = watch(tmp_path, smi, journal=FELL)
    assert checked.check().fatal
    assert smi.limits_s == [], "nobody waits for it"


def test_it_hangs_only_at_the_second_try_which_has_more_time(tmp_path: Path) -> None:
    smi = FakeSmi(None, None, Answer(0, TWO))
    checked, *_ = watch(tmp_path, smi)
    assert [checked.check().healthy for _ in range(3)] == [True, False, True]
    assert smi.limits_s == [10.0, 60.0, 60.0]


def test_the_launcher_gets_its_answer_and_each_change_is_published_once(tmp_path: Path) -> None:
    smi = FakeSmi(Answer(0, TWO), Answer(0, "0, 00000000:00:1E.0, 0\n"))
    checked, published, run_dir = watch(tmp_path, smi, every_s=3600.0)
    checked.start()
    until = time.monotonic() + 30
    while not smi.limits_s and time.monotonic() < until:
        time.sleep(0.01)
    for number in (7, 8):
        run_dir.ask_for_gpu_check(number)
        while run_dir.gpu_verdict(number) is None and time.monotonic() < until:
            time.sleep(0.01)
    checked.stop()
    assert run_dir.gpu_verdict(7) == run_dir.gpu_verdict(8) == "nvidia-smi finds 1 of 2 GPUs"
    assert [each.reason for each in published] == ["nvidia-smi finds 1 of 2 GPUs"]
    assert run_dir.asked_gpu_check() is None


def test_an_unforeseen_error_does_not_end_the_watch_and_says_nothing_about_gpus(tmp_path: Path) -> None:
    checked, published, run_dir = watch(tmp_path, FakeSmi(ZeroDivisionError("unforeseen")), every_s=3600.0)
    checked.start()
    until = time.monotonic() + 30
    for number in (7, 8):
        run_dir.ask_for_gpu_check(number)
        while run_dir.gpu_verdict(number) is None and time.monotonic() < until:
            time.sleep(0.01)
    checked.stop()
    assert run_dir.gpu_verdict(7) == run_dir.gpu_verdict(8) == ""
    assert published == []


def test_a_storm_of_xids_is_bounded(tmp_path: Path) -> None:
    storm = "".join(f"NVRM: Xid (PCI:0000:3b:00): 13, pid={n}\n" for n in range(1000))
    checked, *_ = watch(tmp_path, FakeSmi(Answer(0, TWO)), journal=storm + FELL)
    assert checked.check().fatal, "what matters is not crowded out"
    assert len(checked._xids) <= 256


def test_a_long_complaint_is_cut() -> None:
    verdict = judge_smi(2, Answer(15, "GPU is lost" + "!" * 10_000))
    assert verdict is not None
    assert len(verdict.reason) == MAX_REASON_CHARACTERS


# -- the launcher --------------------------------------------------------------------------------------------


def test_an_agent_that_does_not_answer_is_waited_for_a_limited_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = RunDir(tmp_path)
    monkeypatch.delenv("SPOTSUP_GPU_CHECK", raising=False)
    assert ask_agent(run_dir, 3, lambda: False) == "", "without GPUs there is nothing to ask"
    assert run_dir.asked_gpu_check() is None
    monkeypatch.setenv("SPOTSUP_GPU_CHECK", "1")
    assert ask_agent(run_dir, 3, lambda: False, timeout_s=0.1) == ""
    assert ask_agent(run_dir, 3, lambda: True) == "", "a node that leaves waits for nothing"
    assert run_dir.asked_gpu_check() == 3
    run_dir.answer_gpu_check(3, "Xid 79")
    assert ask_agent(run_dir, 3, lambda: False) == "Xid 79"
    run_dir.begin(4)
    assert run_dir.gpu_verdict(3) is None
