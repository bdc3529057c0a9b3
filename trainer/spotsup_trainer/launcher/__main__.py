"""`python -m spotsup_trainer.launcher <torchrun's own command line>`."""

from spotsup_trainer.launcher.main import run

run()
