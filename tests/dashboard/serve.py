"""Serves the made-up clusters, each on a port, and prints the addresses as JSON, until its stdin closes."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack

from tests.dashboard.clusters import CLUSTERS
from tests.dashboard.serving import serving


def main() -> None:
    """For tests/dashboard/browse.py, which runs in an environment of its own."""
    with ExitStack() as stack:
        sys.stdout.write(json.dumps({name: stack.enter_context(serving(made())) for name, made in CLUSTERS.items()}))
        sys.stdout.write("\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
