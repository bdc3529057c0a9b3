"""The node agent: one process per node that runs the launcher, reads preemption notices and publishes both. No torch.

Internal; its command line is `spotsup-agent` (main.py). Each cloud's notice format is one module: aws, azure, gcp.
"""
