"""The job's code and spotsup_trainer, each unpacked into a folder named by its content."""
