"""The daemon's HTTP API on a Unix socket: what `spotsupctl` speaks."""
