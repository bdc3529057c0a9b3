"""Records in etcd: what is stored, how it is encoded, read back, backed up; and the embedded etcd."""
