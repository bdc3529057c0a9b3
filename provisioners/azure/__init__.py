"""Azure as a provisioner."""
