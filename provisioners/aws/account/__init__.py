"""What an installation has in an AWS account beside its machines: security groups, roles, an EFS file system."""
