"""The daemons of a cluster, and the cluster as a whole."""
