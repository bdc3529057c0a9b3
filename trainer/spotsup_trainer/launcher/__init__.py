"""Starts and stops the workers of one node: the elastic agent, the fork server, and data jobs.

Internal; its command lines are `python -m spotsup_trainer.launcher`, which takes torchrun's arguments, and
`python -m spotsup_trainer.launcher.data_job`.
"""
