"""The node agent: one small process per node that runs the launcher, watches for a notice, and tells etcd. No torch."""
