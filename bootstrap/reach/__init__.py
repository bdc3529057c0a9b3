"""Whether the machine reaches etcd."""
