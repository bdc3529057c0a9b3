"""The scripts of the gpu steps, run on this machine and in a sandbox."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bootstrap.blame import OF_JOB
from bootstrap.gpu.facts import Gpu, GpuFacts, gpu_facts, gpu_script
from bootstrap.gpu.step import check_gpus
from bootstrap.model import Host, Paths, Run
from bootstrap.steps import plan
from tests.support import plans
from tests.support.hosts import host_on
from tests.support.plans import a_bus, a_program, a_setup, gpu_facts_of, read
from tests.support.sandbox import Sandbox

GOLDEN = plans.GOLDEN / "gpu"


def run_script(script: str, path: str) -> Any:
    environ = {"PATH": path, "HOME": "/nowhere"}
    return subprocess.run(
        ["/bin/sh", "-c", script], capture_output=True, text=True, timeout=60, check=False, env=environ
    )


def gathered(tmp_path: Path, host: Host = host_on("aws", "T4", 1)) -> GpuFacts:  # noqa: B008 - frozen
    bin_ = tmp_path / "bin"
    bin_.mkdir(exist_ok=True)
    setup = a_setup(root=str(tmp_path / "a root"), host=host)
    script = gpu_script(setup, str(tmp_path / "a sys"), str(tmp_path / "proc"))
    done = run_script(script, f"{bin_}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    facts: GpuFacts = gpu_facts(json.loads(done.stdout))["gpu"]
    return facts


def test_nothing_is_run_on_a_machine_without_nvidia_devices(tmp_path: Path) -> None:
    a_program(tmp_path / "bin", "nvidia-smi", f"touch '{tmp_path}/asked'")
    assert gathered(tmp_path) == GpuFacts()
    a_bus(tmp_path / "a sys", ("0x1d0f", "0xec20", "0x020000"))
    assert gathered(tmp_path) == GpuFacts()
    assert not (tmp_path / "asked").exists()


def test_the_facts_of_bus_kernel_module_and_nvidia_smi_are_gathered(tmp_path: Path) -> None:
    a_bus(tmp_path / "a sys", ("0x10de", "0x1eb8", "0x030200"), ("0x10de", "0x10f8", "0x040300"))
    version = tmp_path / "proc" / "driver" / "nvidia" / "version"
    version.parent.mkdir(parents=True)
    case = read(GOLDEN / "gcp_image_t4.json")
    version.write_text("\n".join(case["texts"]["version"]))
    a_program(tmp_path / "bin", "nvidia-smi", f"echo '{case['texts']['smi'][0]}'")
    noted = tmp_path / "a root" / "nodes" / "n1" / "gpu-checked"
    noted.parent.mkdir(parents=True)
    noted.write_text("abc\n")
    found = gathered(tmp_path)
    assert found.devices == (0x1EB8,)
    assert (found.flavour, found.version, found.branch) == ("open", "580.95.05", 580)
    assert (found.smi, found.complaint, found.checked) == (0, "", "abc")
    assert found.gpus == (Gpu(0, "Tesla T4", "GPU-00000001-5a3c-7d1e-9b42-0c6f8e2d4a17", 15360, 0, False),)
    assert gathered(tmp_path, host_on("aws")) == GpuFacts()


def test_the_functions_that_manage_nvswitches_are_told_from_network_adapters(tmp_path: Path) -> None:
    switches = [("0x15b3", "0x1021", "0x020700")] * 2
    adapters = [("0x15b3", "0x101e", "0x020000"), ("0x15b3", "0x1019", "0x020700")]
    a_bus(tmp_path / "a sys", ("0x10de", "0x3182", "0x030200"), *switches, *adapters)
    found = gathered(tmp_path)
    assert (found.devices, found.switches, found.bridges) == ((0x3182,), 0, 2)


@pytest.mark.long
def test_a_program_that_does_not_end_is_not_waited_for(tmp_path: Path) -> None:
    a_bus(tmp_path / "a sys", ("0x10de", "0x1eb8", "0x030200"))
    # Stands for a process that the kernel holds: this `timeout` never ends it.
    a_program(tmp_path / "bin", "timeout", f"exec sleep 30 & echo $! >'{tmp_path}/pid'; wait")
    a_program(tmp_path / "bin", "nvidia-smi", "exit 0")
    setup = a_setup(root=str(tmp_path / "a root"), host=host_on("aws", "T4", 1))
    script = gpu_script(setup, str(tmp_path / "a sys"), str(tmp_path / "proc"))
    script = script.replace("limit_s=30", "limit_s=1").replace("patience_s=180", "patience_s=1")
    began = time.monotonic()
    done = run_script(script, f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert time.monotonic() - began < 20
    assert gpu_facts(json.loads(done.stdout))["gpu"].smi_hung
    os.kill(int((tmp_path / "pid").read_text()), 9)


@pytest.mark.parametrize(
    ("born", "smi", "asked", "hung"),
    [
        # Only the first call is slow: it wakes the GPUs.
        ("n1", '[ -e "$DIR/awake" ] || exec sleep 30', ["query", "persist", "query"], False),
        ("another", 'case "$ASKED" in *query*query*) ;; *) exec sleep 30 ;; esac', ["query", "query"], False),
        ("n1", 'case "$1" in -pm) exec sleep 30 ;; *) exec sleep 30 ;; esac', ["query", "persist"], True),
        ("n1", 'case "$1" in -pm) ;; *) exec sleep 30 ;; esac', ["query", "persist", "query"], True),
    ],
)
def test_a_slow_nvidia_smi_is_tried_again_with_persistence_mode_on(
    tmp_path: Path, born: str, smi: str, asked: list[str], hung: bool
) -> None:
    a_bus(tmp_path / "sys", ("0x10de", "0x1eb8", "0x030200"))
    (tmp_path / "born").write_text(f"{born}\n")
    row = "0, Tesla T4, GPU-1, 580.95.05, 15360, 0, Enabled"
    note = 'case "$1" in -pm) what=persist; touch "$DIR/awake" ;; *) what=query ;; esac; echo "$what" >>"$DIR/asked"'
    a_program(tmp_path / "bin", "nvidia-smi", f'DIR={tmp_path}\n{note}\nASKED=$(cat "$DIR/asked")\n{smi}\necho "{row}"')
    a_program(tmp_path / "bin", "sudo", 'shift; exec "$@"')
    setup = a_setup(root=str(tmp_path / "root"), host=host_on("aws", "T4", 1))
    script = gpu_script(setup, str(tmp_path / "sys"), str(tmp_path / "proc")).replace(
        "born=/etc/spotsup/born", f"born={tmp_path}/born"
    )
    script = script.replace("limit_s=30", "limit_s=1").replace("patience_s=180", "patience_s=2")
    done = run_script(script, f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    found = gpu_facts(json.loads(done.stdout))["gpu"]
    assert (tmp_path / "asked").read_text().split() == asked
    assert (found.smi_hung, len(found.gpus)) == (hung, 0 if hung else 1)


def test_the_jobs_interpreter_computes_and_that_is_noted(tmp_path: Path) -> None:
    """The real script with an interpreter that stands for a machine: here is no GPU."""
    paths = Paths(str(tmp_path / "a root"), "n1")
    own = Path(paths.own)
    own.mkdir(parents=True)
    (own / "env.sh").write_text("export OF_THE_JOB=yes\n")
    python = tmp_path / "python"
    a_program(tmp_path, "python", f'echo "$OF_THE_JOB $3" >"{tmp_path}/called"; exit "${{STATUS:-0}}"')
    script = check_gpus(paths, str(python), 2, "the-key", 20)
    failed = run_script(f"export STATUS=3; {script}", os.environ["PATH"])
    assert failed.returncode == 3
    assert not (own / "gpu-checked").exists()
    done = run_script(script, os.environ["PATH"])
    assert (done.returncode, done.stderr) == (0, "")
    assert (own / "gpu-checked").read_text() == "the-key\n"
    assert (tmp_path / "called").read_text() == "yes 2\n"
    a_program(tmp_path, "python", "exec sleep 30")
    hangs = run_script(check_gpus(paths, str(python), 2, "the-key", 0.2), os.environ["PATH"])
    assert hangs.returncode == 124
    assert "did not end within 0.2 s: one of them hangs" in hangs.stderr


# -- the scripts that change a machine, in a sandbox --------------------------------------------------------


def first_run(name: str) -> Run:
    """The first command of a golden file's gpu step."""
    case = read(GOLDEN / f"{name}.json")
    planned = plan(gpu_facts_of(case), a_setup(host=host_on(**case["host"])))
    decision = next(step.decision for step in planned if step.name == "gpu")
    assert isinstance(decision, tuple)
    assert isinstance(decision[0], Run)
    return decision[0]


def _apt(box: Sandbox, *, built: bool) -> None:
    """`built`: whether Canonical's modules for this kernel fit the other packages; if not, they may be listed all the
    same (nvidia-kernel-common of another version)."""
    refuses = "" if built else 'case "$*" in *" -s "*) echo "E: Unable to correct problems" >&2; exit 100;; esac'
    box.program("apt-get", f'echo "apt-get $*" >>"$BOX/log"; {refuses}')


@pytest.mark.parametrize(
    ("name", "built", "says"),
    [
        ("ubuntu_2204_t4", False, "Secure Boot is on"),
        ("debian_12_t4", False, "Secure Boot is on"),
        ("ubuntu_2204_t4", True, ""),
    ],
)
def test_no_driver_is_built_where_secure_boot_would_not_load_it(
    tmp_path: Path, name: str, built: bool, says: str
) -> None:
    box = Sandbox(tmp_path / "box")
    _apt(box, built=built)
    box.program("mokutil", "echo SecureBoot enabled")
    done = box.run(first_run(name))
    assert (done.returncode, done.stderr.partition(",")[0].strip()) == (1 if says else 0, says)
    assert any("apt-get" in line and " -s " not in line and "nvidia" in line for line in box.log) is not bool(says)


@pytest.mark.parametrize(
    ("name", "built", "installed"),
    [
        ("ubuntu_2204_t4", True, "linux-modules-nvidia-580-server-open-6.8.0-1021-aws"),
        ("ubuntu_2204_t4", False, "linux-headers-6.8.0-1021-aws nvidia-dkms-580-server-open"),
        ("ubuntu_2204_v100", True, "linux-modules-nvidia-580-server-6.8.0-1021-aws"),
        ("ubuntu_2204_v100", False, "linux-headers-6.8.0-1021-aws nvidia-dkms-580-server"),
        ("debian_12_t4", False, "linux-headers-6.1.0-28-cloud-amd64 nvidia-driver-cuda nvidia-kernel-open-dkms"),
        ("debian_12_v100", False, "linux-headers-6.1.0-28-cloud-amd64 nvidia-driver-cuda nvidia-kernel-dkms"),
    ],
)
def test_the_driver_packages_that_are_installed(tmp_path: Path, name: str, built: bool, installed: str) -> None:
    box = Sandbox(tmp_path / "box")
    _apt(box, built=built)
    box.program("mokutil", "echo SecureBoot disabled")
    box.program("dpkg-query", "echo installed linux-modules-nvidia-535; echo not-installed nvidia-dkms-535")
    box.program("curl", 'echo "curl $*" >>"$BOX/log"; while [ "$1" != -o ]; do shift; done; touch "$2"')
    box.program("dpkg", ":")
    done = box.run(first_run(name))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    options = "-q -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3"
    asked = [line.removeprefix(f"apt-get {options} ") for line in box.log if line.startswith("apt-get")]
    assert asked[:2] == ["purge linux-modules-nvidia-535", "update"]
    assert asked[-1].startswith(f"install --no-install-recommends {installed}")
    if name.startswith("ubuntu"):
        assert asked[2].startswith("-s install --no-install-recommends linux-modules-nvidia-580-server")
        assert asked[-1].endswith(" nvidia-utils-580-server")
    else:
        assert any("/repos/debian12/x86_64/cuda-keyring_1.1-1_all.deb" in line for line in box.log)
        assert asked[-2] == "install nvidia-driver-pinning-580"
    noted = (box.box / "etc" / "spotsup" / "gpu-driver").read_text()
    assert noted == installed_key(name)


def installed_key(name: str) -> str:
    """What stands in the note, which makes a second attempt impossible."""
    flavour = "proprietary" if "v100" in name else "open"
    return f"580 {flavour} {read(GOLDEN / f'{name}.json')['system']['kernel']}\n"


def test_packages_that_cannot_be_installed_fail_the_step_and_leave_no_note(tmp_path: Path) -> None:
    box = Sandbox(tmp_path / "box")
    box.program("apt-get", "echo 'E: Unable to locate package' >&2; exit 100")
    done = box.run(first_run("ubuntu_2204_t4"))
    assert done.returncode == 100
    assert "E: Unable to locate package" in done.stderr
    assert not (box.box / "etc" / "spotsup" / "gpu-driver").exists()


@pytest.mark.parametrize("name", ["ubuntu_2204_t4", "debian_12_t4", "aws_image_h100_cold"])
def test_a_machine_that_was_made_for_another_node_refuses_the_scripts(tmp_path: Path, name: str) -> None:
    box = Sandbox(tmp_path / "box", born="another")
    done = box.run(first_run(name))
    assert done.returncode == 1
    assert "was not made for it, and is left as it is" in done.stderr
    assert box.log == []


def test_the_fabric_manager_has_the_drivers_own_version(tmp_path: Path) -> None:
    box = Sandbox(tmp_path / "box")
    assert box.run(first_run("h100_without_fabric_manager")).returncode == 0
    assert box.log[2].endswith("3 install --no-install-recommends nvidia-fabricmanager-580=580.95.05-*")
    assert box.log[-1] == "systemctl enable --now nvidia-fabricmanager"


def test_the_fabric_manager_of_nvidias_repository_has_another_name(tmp_path: Path) -> None:
    box = Sandbox(tmp_path / "box")
    _apt(box, built=False)
    done = box.run(first_run("h100_without_fabric_manager"))
    assert (done.returncode, done.stderr) == (0, "")
    assert box.log[2].endswith("3 install --no-install-recommends nvidia-fabricmanager=580.95.05-*")


@pytest.mark.parametrize(
    ("name", "listed", "loads", "asked"),
    [
        ("b300_fabric_manager_failed", True, True, ["nvlsm infiniband-diags"]),
        (
            "b200_without_fabric_manager",
            False,
            False,
            [
                "linux-modules-extra-6.14.0-1015-aws",
                "ca-certificates curl",
                "/repos/ubuntu2404/x86_64/cuda-keyring_1.1-1_all.deb",
                "nvlsm infiniband-diags",
            ],
        ),
        (
            "b200_debian_12",
            False,
            True,
            ["ca-certificates curl", "/repos/debian12/x86_64/cuda-keyring_1.1-1_all.deb", "nvlsm infiniband-diags"],
        ),
    ],
)
def test_what_nvlink_5_needs_beside_the_fabric_manager(
    tmp_path: Path, name: str, listed: bool, loads: bool, asked: list[str]
) -> None:
    """`listed`: whether the machine's repositories have nvlsm. `loads`: whether the kernel's modules are all there."""
    box = Sandbox(tmp_path / "box")
    (box.box / "etc" / "modules-load.d").mkdir()
    _apt(box, built=listed)
    missing = "" if loads else 'grep -q linux-modules-extra "$BOX/log" ||'
    box.program("modprobe", f'echo "modprobe $*" >>"$BOX/log"; {missing} {":" if loads else "exit 1"}')
    box.program("curl", 'echo "curl $*" >>"$BOX/log"; while [ "$1" != -o ]; do shift; done; touch "$2"')
    box.program("dpkg", ":")
    done = box.run(first_run(name))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    fetched = [line for line in box.log if line.startswith("curl") or ("install" in line and " -s " not in line)]
    assert [line.endswith(end) for line, end in zip(fetched, asked, strict=True)] == [True] * len(asked), fetched
    assert [line for line in box.log if "modprobe" in line][-1] == "modprobe -a mlx5_ib ib_umad"
    assert (box.box / "etc" / "modules-load.d" / "spotsup-nvlink.conf").read_text() == "mlx5_ib\nib_umad\n"


@pytest.mark.long
def test_torch_without_gpus_says_so_in_one_sentence(tmp_path: Path) -> None:
    paths = Paths(str(tmp_path), "n1")
    Path(paths.own).mkdir(parents=True)
    (Path(paths.own) / "env.sh").write_text("export CUDA_VISIBLE_DEVICES=\n")
    done = run_script(check_gpus(paths, sys.executable, 1, "key", 50), os.environ["PATH"])
    assert done.returncode != 0
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("torch ")
    assert done.returncode == OF_JOB, "another machine would say the same"


def a_torch(folder: Path, driver: int, error: str) -> Paths:
    """A node whose torch, built for CUDA 13, cannot compute."""
    paths = Paths(str(folder), "n1")
    Path(paths.own).mkdir(parents=True)
    (Path(paths.own) / "env.sh").write_text(f"export PYTHONPATH={folder}\n")
    (folder / "torch.py").write_text(
        "from types import SimpleNamespace as Name\n"
        "__version__ = '2.15.0'\n"
        "version = Name(cuda='13.0')\n"
        f"_C = Name(_cuda_getDriverVersion=lambda: {driver})\n"
        f"def init(): raise RuntimeError({error!r})\n"
        "cuda = Name(device_count=lambda: 1, init=init)\n"
    )
    return paths


def test_nvswitches_that_are_not_set_up_are_said_to_lack_the_fabric_manager(tmp_path: Path) -> None:
    error = (
        "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() "
        "that might have already set an error? Error 802: system not yet initialized"
    )
    done = run_script(check_gpus(a_torch(tmp_path, 13000, error), sys.executable, 1, "key", 50), os.environ["PATH"])
    (sentence,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert sentence == (
        "torch 2.15.0 (CUDA 13.0) cannot compute on the GPUs: CUDA error 802, the NVSwitches are not set up: "
        "journalctl -u nvidia-fabricmanager on the machine says why; the fabric manager needs the version of the "
        "driver, and on B200 and B300 nvlsm"
    )


@pytest.mark.parametrize(("driver", "fits"), [(12080, False), (13000, True), (0, True)])
def test_a_torch_for_a_newer_cuda_than_the_drivers_is_the_jobs_fault(tmp_path: Path, driver: int, fits: bool) -> None:
    paths = a_torch(tmp_path, driver, "no such device")
    done = run_script(check_gpus(paths, sys.executable, 1, "key", 50), os.environ["PATH"])
    (sentence,) = done.stderr.splitlines()
    if fits:
        assert (done.returncode, sentence) == (1, "torch 2.15.0 (CUDA 13.0) cannot compute on the GPUs: no such device")
    else:
        assert done.returncode == OF_JOB
        assert sentence == (
            "torch 2.15.0 was built for CUDA 13.0, and the driver of this machine is for CUDA 12: take a torch for "
            "CUDA 12 (the index of PyTorch has one), or an image with a newer driver"
        )
