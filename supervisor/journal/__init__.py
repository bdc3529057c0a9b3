"""The journal: records in etcd, their encoding, reading and backup; and the embedded etcd."""
