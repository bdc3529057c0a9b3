"""Words for systemd (`Type=notify`): https://www.freedesktop.org/software/systemd/man/sd_notify.html"""

from __future__ import annotations

import os
import socket


def notify(text: str) -> None:
    """Tell systemd, where it asked to be told. A service manager that is gone must not stop us."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.connect(address)
        sender.sendall(text.encode())
