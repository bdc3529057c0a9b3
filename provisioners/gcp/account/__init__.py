"""What an installation has in a Google Cloud project beside its machines: firewall rules, service accounts, roles, a
Filestore instance."""
