"""Amazon EC2 as a provisioner. boto3 is loaded when the first AwsProvisioner is made."""

from provisioners.aws.provisioner import AwsProvisioner

__all__ = ["AwsProvisioner"]
