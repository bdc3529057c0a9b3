"""`spotsupctl report`: how a job went, on one page."""

from __future__ import annotations

from pathlib import Path

import click

from supervisor.cli.common import connected, job_path, print_json
from supervisor.cli.completing import complete_jobs
from supervisor.errors import UsageError


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@click.option(
    *("-o", "--output"),
    default="text",
    show_default=True,
    metavar="[text|json|FILE.md|FILE.html]",
    help="text is Markdown; a file gets what its name says, HTML with plots.",
)
@click.pass_context
def report(context: click.Context, job: str, output: str) -> None:
    """Report a job's speed, pauses and cost.

    Samples per second and scaling efficiency by number of nodes, dollars per epoch, pauses by cause, and what the same
    machine hours would have cost on demand; in HTML also plots of loss, speed, nodes and cost. While the job runs, and
    after it has ended.
    """
    file = Path(output)
    if output not in {"text", "json"} and file.suffix not in {".md", ".html"}:
        raise click.BadParameter(f"{output!r} is neither text nor json, nor a file *.md or *.html", param_hint="'-o'")
    with connected(context) as daemon:
        found = daemon.get(job_path(job, "/report"))
        if output == "json":
            print_json(found)
            return
        from supervisor.cli.report_pages import html, markdown

        text = html(found) if file.suffix == ".html" else markdown(found)
        if output == "text":
            click.echo(text, nl=False)
            return
        try:
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {file}: {error.strerror or error}") from error
        click.echo(f"wrote {file}")
