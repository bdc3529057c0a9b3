"""What runs inside a machine of the local cloud: its init, sshd and metadata service. Standard library only.

Each machine runs one such interpreter for its whole life, so imports stay light: no asyncio, no
subprocess, no http, no dataclasses.
"""
