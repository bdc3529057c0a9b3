"""Which nodes are in the next round, in which order, and how they agree on it through etcd.

Internal; torchrun loads it by the entry point `spotsup` (plugin.py). membership.py decides, client.py reads and writes
the keys, handler.py is torch's interface.
"""
