"""`python -m spotsup_trainer.launcher <torchrun's own command line>`."""

import sys

from spotsup_trainer.launcher.main import run

# As where an agent starts it, and as below torchrun: `-m` has put the current folder there, which workers would get.
if not getattr(sys.flags, "safe_path", False):  # PYTHONSAFEPATH, since Python 3.11
    del sys.path[0]
run()
