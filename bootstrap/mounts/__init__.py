"""The job's file systems: mounted, answering, and proven to take a checkpoint."""
