"""Debian's packages, unpacked into a folder: no root, nothing installed, nothing outside the folder."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tools.setup.errors import SetupError, output_tail, run

TIMEOUT_S = 600.0
_NO_WEAK = tuple(f"--no-{kind}" for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances"))


class Apt:
    """apt-get download and dpkg-deb. Fetches package lists of its own where the host's are missing or old."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._own_lists: tuple[str, ...] = ()

    def unpack(self, packages: Sequence[str], root: Path) -> None:
        """Download packages and unpack them below `root`. Raises SetupError."""
        downloads = self._folder / "packages"
        shutil.rmtree(downloads, ignore_errors=True)
        downloads.mkdir(parents=True)
        root.mkdir(parents=True, exist_ok=True)
        try:
            self._download(packages, downloads)
            for package in sorted(downloads.glob("*.deb")):
                done = run(["dpkg-deb", "-x", str(package), str(root)], cwd=downloads, timeout_s=TIMEOUT_S)
                if done.returncode != 0:
                    raise SetupError(f"{package.name} cannot be unpacked: {output_tail(done)}")
        finally:
            shutil.rmtree(downloads, ignore_errors=True)

    def missing_libraries(self, package: str) -> set[str]:
        """Return the libraries that a package depends on and that are not installed. Raises SetupError."""
        done = run(
            ["apt-cache", *self._own_lists, "depends", *_NO_WEAK, package], cwd=self._folder, timeout_s=TIMEOUT_S
        )
        if done.returncode != 0:
            raise SetupError(f"the dependencies of {package} are not known: {output_tail(done)}")
        lines = [line.strip().lstrip("|") for line in done.stdout.splitlines()]
        depends = {line.partition("Depends: ")[2] for line in lines if "Depends: " in line}
        return {name for name in depends if name.startswith("lib") and not self._is_installed(name)}

    def _is_installed(self, package: str) -> bool:
        query = ["dpkg-query", "--show", "--showformat", "${db:Status-Status}", package]
        return run(query, cwd=self._folder, timeout_s=TIMEOUT_S).stdout == "installed"

    def _download(self, packages: Sequence[str], downloads: Path) -> None:
        command = ["apt-get", "--quiet", "-o", "APT::Sandbox::User=root", *self._own_lists, "download", *packages]
        done = run(command, cwd=downloads, timeout_s=TIMEOUT_S)
        if done.returncode != 0 and not self._own_lists:
            self._fetch_own_lists()
            self._download(packages, downloads)
        elif done.returncode != 0:
            raise SetupError(f"{', '.join(packages)} cannot be downloaded: {output_tail(done)}")

    def _fetch_own_lists(self) -> None:
        """apt-get update, into our own folder."""
        lists, cache = self._folder / "apt" / "lists", self._folder / "apt" / "cache"
        for place in (lists / "partial", cache / "archives" / "partial"):
            place.mkdir(parents=True, exist_ok=True)
        self._own_lists = ("-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={cache}")
        # Its exit status means little: one of several sources may be unreachable. The download decides.
        run(
            ["apt-get", "--quiet", "-o", "APT::Sandbox::User=root", *self._own_lists, "update"],
            cwd=self._folder,
            timeout_s=TIMEOUT_S,
        )
