"""`python -m spotsup_trainer.launcher <torchrun's own command line>`."""

import logging
import os
import sys

from spotsup_trainer.launcher.main import main

exit_code = main()
# Everything is closed. With torch, the interpreter's own exit takes over a second, too long on a preempted machine.
logging.shutdown()
sys.stdout.flush()
os._exit(exit_code)
