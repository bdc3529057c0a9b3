"""A simulated installation under a virtual clock: the daemon's own code on simulated etcd, clouds and nodes."""

__version__ = "0.1.0"
