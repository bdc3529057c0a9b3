"""What a job leaves on a machine: removed before the machine waits for another job, and proven to be gone."""
