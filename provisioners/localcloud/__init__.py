"""A cloud in one directory: real sshd machines on loopback addresses, for the demo, tests and first steps."""
