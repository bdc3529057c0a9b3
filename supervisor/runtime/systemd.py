"""Messages to systemd (`Type=notify`): https://www.freedesktop.org/software/systemd/man/sd_notify.html"""

from __future__ import annotations

import contextlib
import os
import socket

# A service manager that hangs reads nothing, and its socket buffers few messages: the loop must not wait for it.
SEND_S = 1.0


def notify(text: str) -> None:
    """Send a state change, if systemd asked for it. A service manager that is gone or hangs does not stop us."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender, contextlib.suppress(OSError):
        sender.settimeout(SEND_S)
        sender.connect(address)
        sender.sendall(text.encode())
