"""spotsup: the daemon that keeps elastic PyTorch jobs running on spot machines, its API and its command lines."""
