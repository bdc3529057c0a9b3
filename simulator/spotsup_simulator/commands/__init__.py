"""The commands that play jobs. `supervisor.cli.simulator` finds them, where this distribution is installed."""
