"""Google Compute Engine as a provisioner."""
