"""What an installation has in an Azure subscription beside its machines: network, security group, identities, roles,
storage."""
