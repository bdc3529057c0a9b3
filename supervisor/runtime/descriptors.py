"""How many files and connections the daemon may have open."""

from __future__ import annotations

import resource

# The API's ports, with MAX_CONNECTIONS each, and a few hundred of clouds and of etcd.
MAX_DESCRIPTORS = 8192


def raise_limit() -> int:
    """Raise the soft limit, which is 1,024 nearly everywhere, as far as the hard one allows. Returns what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MAX_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return soft
