"""Azure as a provisioner. The SDK is loaded when the first AzureProvisioner is made."""

from provisioners.azure.provisioner import AzureProvisioner

__all__ = ["AzureProvisioner"]
