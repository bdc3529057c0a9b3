"""A job whose nodes write more into etcd than a job may."""
