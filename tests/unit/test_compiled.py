"""Where workers keep compiled code."""

from __future__ import annotations

from pathlib import Path

from spotsup_trainer.launcher.compiled import cache_folders
from spotsup_trainer.launcher.run_dir import RunDir


def test_compiled_code_is_kept_with_the_files_of_the_job() -> None:
    assert cache_folders({"SPOTSUP_RUN_DIR": "/home/me/job/run"}) == {
        "TORCHINDUCTOR_CACHE_DIR": "/home/me/job/run/compiled/inductor",
        "TRITON_CACHE_DIR": "/home/me/job/run/compiled/triton",
    }
    assert cache_folders({"SPOTSUP_RUN_DIR": "run"})["TRITON_CACHE_DIR"] == f"{Path.cwd()}/run/compiled/triton"


def test_what_a_job_sets_itself_counts() -> None:
    environ = {"SPOTSUP_RUN_DIR": "/run/job", "TRITON_CACHE_DIR": "/mine"}
    assert set(cache_folders(environ)) == {"TORCHINDUCTOR_CACHE_DIR"}


def test_a_temporary_run_folder_is_no_place_for_it() -> None:
    assert cache_folders({}) == cache_folders({"SPOTSUP_RUN_DIR": ""}) == {}


def test_a_new_round_removes_none_of_it(tmp_path: Path) -> None:
    folder = Path(cache_folders({"SPOTSUP_RUN_DIR": str(tmp_path)})["TORCHINDUCTOR_CACHE_DIR"])
    folder.mkdir(parents=True)
    (folder / "code.py").touch()
    (tmp_path / "yield-1").touch()
    RunDir(tmp_path).begin(2)
    assert (folder / "code.py").exists()
    assert not (tmp_path / "yield-1").exists()
