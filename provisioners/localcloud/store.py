"""The cloud's directory: its identity, settings and records, and who serves it.

cloud.json      identity, made once
settings.json   how it behaves
machines/ID/    one machine: record.json is the cloud's, the rest is the machine's own
server.lock     held by the one server; names its process
endpoint        where it listens; server.log its log
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from provisioners.localcloud.machine.spec import Folder, read_json, write_json
from provisioners.localcloud.models import Machine, Settings
from provisioners.localcloud.processes import Identity, is_alive, look
from provisioners.localcloud.rules import ADDRESSES

# sockaddr_un.sun_path holds 108 bytes, the last of them a zero.
SOCKET_PATH_BYTES = 107
_RECORD = "record.json"
# As deep in a machine's home are files of spotsup's own that nobody else may read; what is deeper may be very much.
PRIVATE_DEPTH = 4


class StoreError(Exception):
    """The directory is not a cloud's, or another server has it; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Birth:
    """A cloud's identity: `id` makes its machines' ids unique, `first_address` (in ADDRESSES) their addresses."""

    id: str
    first_address: int

    @property
    def machine_prefix(self) -> str:
        """Return how all its machines' ids begin."""
        return f"local-{self.id}-"


class Store:
    """The files below one directory. Only the process that holds `lock` may write."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self._lock: int | None = None

    @property
    def endpoint_file(self) -> Path:
        """Holds the path of the server's socket."""
        return self.directory / "endpoint"

    @property
    def log(self) -> Path:
        """Return what a server that was started as a child says."""
        return self.directory / "server.log"

    def create(self) -> Birth:
        """Make the directory a cloud's, unless it is one; returns its identity."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.directory / "machines").mkdir(exist_ok=True, mode=0o700)
        known = self.birth()
        if known is not None:
            return known
        fresh = Birth(secrets.token_hex(4), secrets.randbelow(ADDRESSES.num_addresses))
        write_json(self.directory / "cloud.json", asdict(fresh))
        return fresh

    def birth(self) -> Birth | None:
        """Return the cloud's identity; None where the directory is no cloud's."""
        values = read_json(self.directory / "cloud.json")
        return None if values is None else Birth(**values)

    # -- who serves ----------------------------------------------------------------------------------------

    def lock(self, *, serves: bool = False) -> None:
        """Become the one that may write. Raises StoreError when another process is.

        Who `serves` may be ended by the next one. Whoever holds it to stop or to destroy the cloud comes to an end by
        itself, and is waited for: a daemon that stops while `destroy` runs must not end that.
        """
        handle = os.open(self.directory / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            server = self.server()
            who = f"is served already, by process {server.pid}" if server else "is being stopped or destroyed"
            raise StoreError(f"{self.directory} {who}") from error
        self._lock = handle
        os.ftruncate(handle, 0)
        if serves:
            me = look(os.getpid())
            assert me is not None
            os.pwrite(handle, f"{me.identity.pid} {me.identity.started}\n".encode(), 0)

    def unlock(self) -> None:
        """Let go of the directory. The lock file stays: to remove it would let two servers hold two files."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def server(self) -> Identity | None:
        """Return the process that serves the cloud and so holds the lock, None when there is none."""
        try:
            fields = (self.directory / "server.lock").read_text().split()
        except FileNotFoundError:
            return None
        server = Identity(int(fields[0]), int(fields[1])) if len(fields) == 2 else None
        return server if server is not None and is_alive(server) else None

    # -- where it listens ----------------------------------------------------------------------------------

    def socket_path(self) -> Path:
        """Return where to listen: in the directory, or, where that path is too long, in a short folder of its own."""
        near = self.directory / "api.sock"
        if len(os.fsencode(near)) <= SOCKET_PATH_BYTES:
            return near
        base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        return Path(tempfile.mkdtemp(prefix="spotsup-", dir=base)) / "api.sock"

    def publish_endpoint(self, path: Path) -> None:
        """Write where the server listens, for clients."""
        scratch = self.endpoint_file.with_name("endpoint.new")
        scratch.write_text(f"{path}\n", encoding="utf-8")
        scratch.replace(self.endpoint_file)

    def endpoint(self) -> Path | None:
        """Return where the server listens, or last did; None before its first start and after its orderly end."""
        try:
            return Path(self.endpoint_file.read_text(encoding="utf-8").rstrip("\n"))
        except FileNotFoundError:
            return None

    def forget_endpoint(self) -> None:
        """Remove the socket, its folder if that was its own, and the file that names it."""
        path = self.endpoint()
        if path is None:
            return
        path.unlink(missing_ok=True)
        if path.parent != self.directory:
            with suppress(FileNotFoundError):
                path.parent.rmdir()
        self.endpoint_file.unlink(missing_ok=True)

    # -- settings and machines -----------------------------------------------------------------------------

    def settings(self) -> Settings:
        """Return the settings as last saved; a new cloud's are the defaults."""
        try:
            text = (self.directory / "settings.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            return Settings()
        return Settings.model_validate_json(text)

    def save_settings(self, settings: Settings) -> None:
        """Keep the settings for the next start."""
        write_json(self.directory / "settings.json", settings.model_dump(mode="json"))

    def folder(self, machine: str) -> Folder:
        """Return the machine's folder."""
        return Folder(self.directory / "machines" / machine)

    def machines(self) -> dict[str, Machine]:
        """Return all records, by machine id."""
        found = {}
        for path in sorted((self.directory / "machines").glob(f"*/{_RECORD}")):
            machine = Machine.model_validate_json(path.read_text(encoding="utf-8"))
            found[machine.id] = machine
        return found

    def save_machine(self, machine: Machine) -> None:
        """Keep a machine's record."""
        write_json(self.folder(machine.id).path / _RECORD, machine.model_dump(mode="json"))

    def make_folder(self, machine: str, *, host_key: str, authorized_keys: Sequence[str]) -> Folder:
        """Return a fresh folder for a machine that has no record yet; what a crash left half made is removed."""
        folder = self.folder(machine)
        if folder.path.exists():
            shutil.rmtree(folder.path)
        folder.path.mkdir(mode=0o700)
        folder.home.mkdir(mode=0o700)
        with open(os.open(folder.host_key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as key:  # noqa: PTH123
            key.write(host_key.rstrip("\n") + "\n")  # sshd wants the last line to end
        folder.authorized_keys.write_text("".join(f"{key.strip()}\n" for key in authorized_keys), encoding="utf-8")
        return folder

    def drop_secrets(self, machine: str) -> None:
        """Remove an ended machine's private key, also in its user data; and its user's private files, such as a job's
        variables. The rest of its disk stays for a while, for people who look why it ended."""
        folder = self.folder(machine)
        folder.host_key.unlink(missing_ok=True)
        shutil.rmtree(folder.seed, ignore_errors=True)
        for depth in range(1, PRIVATE_DEPTH + 1):
            for path in folder.home.glob("/".join("*" * depth)):
                with suppress(OSError):  # a rented machine's disk would be gone: as much of it as can be
                    if stat.S_ISREG(found := path.lstat().st_mode) and not found & 0o077:
                        path.unlink()

    def wipe(self, machine: str) -> None:
        """Remove an ended machine's disk; its record and its log stay. Raises OSError."""
        home = self.folder(machine).home
        if home.exists():
            shutil.rmtree(home)
