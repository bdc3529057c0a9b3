"""What the shell is offered when Tab is pressed, and what a misspelt command may have meant."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from importlib import import_module
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from supervisor.removed import INSTEAD

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# A shell waits for it.
TIMEOUT_S = 1.0
SHELLS = ("bash", "zsh", "fish")
HOW = {
    "bash": 'add to ~/.bashrc:  eval "$(spotsupctl completion bash)"',
    "zsh": 'add to ~/.zshrc:  eval "$(spotsupctl completion zsh)"',
    "fish": "spotsupctl completion fish > ~/.config/fish/completions/spotsupctl.fish",
}


class Place(NamedTuple):
    """Where a command is, and its line in its group's help."""

    module: str
    attribute: str
    line: str


class HelpfulGroup(click.Group):
    """A group that says which command a misspelt one may have meant, and loads the one that is used."""

    # By name. Loading all of them takes longer than most commands.
    places: Mapping[str, Place] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """As click does."""
        return sorted({*super().list_commands(ctx), *self.places})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """As click does."""
        if cmd_name not in self.places:
            return super().get_command(ctx, cmd_name)
        place = self.places[cmd_name]
        found = getattr(import_module(place.module), place.attribute)
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does."""
        names = self.list_commands(ctx)
        room = formatter.width - 6 - max(map(len, names))
        with formatter.section("Commands"):
            formatter.write_dl([(name, shorten(self._line(ctx, name), room, placeholder="...")) for name in names])

    def _line(self, ctx: click.Context, name: str) -> str:
        if name in self.places:
            return self.places[name].line
        command = super().get_command(ctx, name)
        assert command is not None
        return command.get_short_help_str(1000)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            if instead := INSTEAD.get(args[0]):
                raise click.UsageError(f"there is no command {args[0]} any more; {instead}", ctx)
            import difflib

            close = difflib.get_close_matches(args[0], self.list_commands(ctx), n=2)
            hint = f"did you mean {' or '.join(close)}?" if close else f"`{ctx.command_path} --help` lists all"
            raise click.UsageError(f"there is no command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """As click does, but says what takes the place of an option that is gone."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            if instead := INSTEAD.get(error.option_name):
                sentence = f"there is no option {error.option_name} any more; {instead}"
                raise click.UsageError(sentence, error.ctx) from None
            raise


Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def _names(path: str, key: str, describe: str) -> Completer:
    """Offers the names in the rows of a path of the API. Without a daemon it offers nothing, and says nothing."""

    def complete(context: click.Context, _: click.Parameter, begin: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem
        from spotsup.contexts import default_daemon
        from spotsup.transport import Transport

        from supervisor.errors import SpotsupError

        given = context.find_root().params
        try:
            where = given.get("socket_path") or default_daemon(given.get("context_name"))
            with closing(Transport(where, timeout_s=TIMEOUT_S)) as daemon:
                rows: list[dict[str, Any]] = daemon.get(path)
        except SpotsupError:
            return []
        return [CompletionItem(row[key], help=str(row[describe])) for row in rows if row[key].startswith(begin)]

    return complete


complete_jobs = _names("/v1/jobs", "name", "state")
complete_nodes = _names("/v1/nodes", "id", "state")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what makes a shell complete commands, options, and names of jobs and nodes.

    bash and zsh: eval "$(spotsupctl completion bash)" in the shell's start-up file.
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    made = found(context.find_root().command, {}, "spotsupctl", "_SPOTSUPCTL_COMPLETE")
    click.echo(made.source())
    if sys.stdout.isatty():
        click.echo(f"spotsupctl: {HOW[shell]}", err=True)
