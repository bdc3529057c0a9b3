"""`spotsupctl dashboard`: the daemon's pages in a browser, for whoever may use its socket."""

from __future__ import annotations

import click

from supervisor.cli.common import connected


@click.command()
@click.option("--port", default=0, metavar="PORT", help="Of the loopback interface. By default a free one.")
@click.option("--browser/--no-browser", default=True, help="Open the link.", show_default=True)
@click.pass_context
def dashboard(context: click.Context, port: int, browser: bool) -> None:
    """Show jobs, fleet, queue and money in the browser.

    Serves the daemon's pages on a port of this computer until Ctrl-C, and prints a link that logs one browser in. The
    daemon may be one over the network.
    """
    with connected(context) as daemon:
        from supervisor.cli.gateway import Gateway

        daemon.get("/v1/health")
        with Gateway(daemon, port) as gateway:
            click.echo(f"{gateway.link}\nThe link is good for one use; Ctrl-C ends the dashboard.")
            if browser:
                click.launch(gateway.link)
            try:
                gateway.serve_forever()
            except KeyboardInterrupt:
                click.echo()
