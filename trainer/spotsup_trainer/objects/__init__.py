"""Object stores, for checkpoints: addresses, a small client, and the check that a node makes before it trains."""
