"""`make acceptance`: bootstrap and training on real virtual machines."""
