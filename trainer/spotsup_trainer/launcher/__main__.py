"""`python -m spotsup_trainer.launcher <torchrun's own command line>`."""

import logging
import os
import sys

from spotsup_trainer.launcher.main import main

exit_code = main()
# All is closed. Python's own end takes a second and more with torch, which a machine that is about to go lacks.
logging.shutdown()
sys.stdout.flush()
os._exit(exit_code)
