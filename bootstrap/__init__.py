"""Facts to commands over SSH: from a bare machine to a node that trains."""
