"""`python -m spotsup_trainer.agent --config agent.json`."""

import sys

from spotsup_trainer.agent.main import main

sys.exit(main())
