"""A user's own desk: `spotsupctl` as a program, and the simulated world's daemon behind a real socket."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from spotsup_simulator.world import World
from structlog.testing import capture_logs

from supervisor.api.app import create_app
from supervisor.api.quote import Quotes
from supervisor.api.secrets import Secrets, add_secrets
from supervisor.api.security.unix_socket import bind_socket
from supervisor.api.service import Service
from supervisor.api.serving import ApiServer
from supervisor.api.sweeps import Sweeps, add_sweeps
from supervisor.cli import ctl
from supervisor.identity import Identity
from supervisor.market.admission import QueueRules
from tests.sim.harness import empty_world, wait_in
from tests.support.programs import run_at_a_terminal
from tools.stack import ROOT


@dataclass
class Desk:
    """The world runs on for a second with each command that changes something, and where a test says so."""

    world: World
    socket: Path
    folder: Path  # of the user: what is submitted lies here
    service: Service

    def ctl(self, *arguments: str, stdin: str | None = None, environ: Mapping[str, str] | None = None) -> Result:
        """Run `spotsupctl`."""
        return CliRunner().invoke(
            ctl.main, ["--socket", str(self.socket), *arguments], input=stdin, env=dict(environ or {})
        )

    def said(self, *arguments: str) -> str:
        """What it prints where it succeeds."""
        result = self.ctl(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    def ask(self, *arguments: str) -> Any:
        """The same with `-o json`."""
        return json.loads(self.said(arguments[0], "-o", "json", *arguments[1:]))

    def at_a_terminal(self, *arguments: str, typed: str, folder: Path = ROOT) -> tuple[int, str]:
        """Run it as a person does who types something. Returns its exit code, and the screen."""
        return run_at_a_terminal(
            "supervisor.cli.ctl", "--socket", str(self.socket), *arguments, typed=typed, folder=folder
        )

    def write(self, name: str, text: str) -> str:
        """A file of the user. Returns its path."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)


@contextmanager
def desk(folder: Path, quotes: Quotes | None = None, *, rented: bool = False) -> Iterator[Desk]:
    """A daemon without jobs. `quotes`: asks clouds for offers. `rented`: its machines cost money."""
    with capture_logs():  # the daemon's log would be part of what a command prints
        yield from _desk(folder, quotes, rented=rented)


def _desk(folder: Path, quotes: Quotes | None, *, rented: bool) -> Iterator[Desk]:
    world = empty_world()
    daemon = world.daemon
    service = Service(
        daemon.journal,
        daemon.leader,
        world.clock,
        ["local"],
        wait_in(world),
        quotes.quote if quotes else None,
        hosted=[] if rented else ["local"],
    )
    app = create_app(service, lambda: world.daemon.loop.status, world.clock, "0")
    add_sweeps(app, Sweeps(service, daemon.journal, world.clock, QueueRules()))
    add_secrets(app, Secrets(daemon.journal, Identity(b"s" * 32), world.clock))
    with tempfile.TemporaryDirectory(prefix="desk-") as short:
        server = ApiServer(app, bind_socket(Path(short) / "s"))
        server.start()
        try:
            yield Desk(world, Path(short) / "s", folder, service)
        finally:
            server.stop()
