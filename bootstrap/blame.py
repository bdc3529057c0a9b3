"""Tells what a job or its image brings from what passes: the network, a disk, memory, a lock. Pure.

The same failure on two machines ends a job that never trained, so it must not be a fault that two machines share for a
minute. What is not certain is a machine's.
"""

from __future__ import annotations

import re

# With this status a script says that what the job brings is at fault, such as its torch: no other machine like this one
# would do. EX_DATAERR of sysexits.h; torch.sh and gpu/check.sh have it, too.
OF_JOB = 65
TIMED_OUT = 124  # timeout(1)'s status
BY_SIGNAL = 128  # beyond it, a signal ended the command: most often SIGKILL, for want of memory

# As pip, uv, conda, apt, git, curl, docker, npm and Python word it. Looked for in all that is kept of the output: pip's
# last line does not tell a package that does not exist from an index that was away.
_PASSING = re.compile(
    r"timed[ -]?out|(?<![-\w])time-?out\b(?!-)|(?:read|connect\w*) ?timeout|timeout ?error"
    r"|connection (?:was )?(?:refused|reset|aborted|closed|broken|failed|error|lost)|connection ?error|not connected"
    r"|network is (?:down|unreachable)|no route to host|name resolution|resolve host|failure resolving|no such host"
    r"|unknown host|getaddrinfo|name or service not known|dns error|eai_again|enotfound|econnre|proxy ?error"
    r"|max retries|retrying|incomplete ?read|failed to (?:fetch|connect|establish|download)"
    r"|unable to (?:fetch|connect|access)|cannot connect|error sending request|remote end|early eof|broken pipe"
    r"|handshake|certificate.verify|ssl ?error"
    r"|(?<!syntax error: )unexpected (?:eof|end of file)(?! while looking)"
    r"|(?:http(?:/[\d.]+)?|error|status|code)[^\w\n]{0,3}(?:error )?(?:408|425|429|5\d\d)\b|too ?many ?requests"
    r"|rate limit|bad gateway|gateway time|service unavailable|server error"
    r"|no space left|disk quota|read-only file system|input/output error|stale file handle|resource busy|out of memory"
    r"|cannot allocate|memory ?error|too many open files|temporarily unavailable|could not get lock|another process"
    r"|cuda error|nvml|nvidia driver|no cuda-capable",
    re.IGNORECASE,
)
# Numbers, addresses and paths differ where the failure is the same.
_VARYING = re.compile(r"0x[0-9a-f]+|\d+|(?:/[\w.+@-]+)+", re.IGNORECASE)
_CHARACTERS = 300


def alike(step: str, status: int | None, sentence: str, output: str) -> str:
    """Return what is the same on each machine where what the job brings fails in this way; "" where the failure may
    pass: by a time limit, by a signal, silent, or with signs of the network, a disk or memory in `output`."""
    if status is not None and (status == TIMED_OUT or status > BY_SIGNAL or not output.strip()):
        return ""
    if status != OF_JOB and _PASSING.search(output):
        return ""
    return f"{step}, {status}: {_VARYING.sub('', sentence)}"[:_CHARACTERS]
