"""Which nodes are in the next round, in which order, and how they agree on it through etcd."""
