"""`python -m spotsup_trainer.launcher <torchrun's own command line>`."""

import logging
import os
import sys

from spotsup_trainer.launcher.main import main

exit_code = main()
# Everything is closed. With torch, the interpreter's own exit takes over a second, too long on a preempted machine.
logging.shutdown()
# torch 2.6 has a folder below /tmp, which only that exit removes.
if (folder := getattr(sys.modules.get("torch.distributed.nn.jit.instantiator"), "_TEMP_DIR", None)) is not None:
    folder.cleanup()
sys.stdout.flush()
os._exit(exit_code)
