"""Google Compute Engine as a provisioner. google-cloud-compute is loaded when the first GcpProvisioner is made."""

from provisioners.gcp.provisioner import GcpProvisioner

__all__ = ["GcpProvisioner"]
