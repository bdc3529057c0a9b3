"""What a job can do: of each feature its record, which the journal holds, and its rule, which decides."""
