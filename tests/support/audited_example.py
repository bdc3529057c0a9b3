"""The example char_transformer.py, which has to lie beside this file, with a line per completed step and rank on which
samples that was trained on: spotsup_trainer.session.audit reads them.

    audited_example.py --audit DIR [the example's own arguments]
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from pathlib import Path
from typing import Any

from spotsup_trainer.session import Session


class AuditedSession(Session):
    """Writes its line between the optimizer's step and its own, in which it may park and not come back."""

    folder: Path
    _lines: Any = None

    def step(self, loss: Any = None) -> None:
        """As Session's."""
        if self._lines is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lines = (self.folder / f"round{self.round:04d}_rank{self.rank:04d}.jsonl").open("a")
        line = {
            "t": time.time(),
            "round": self.round,
            "rank": self.rank,
            "world": self.world,
            "step": self.steps_done + 1,
            "epoch": self.epoch,
            "indices": self.indices,
            "loss": float(self.loss),
        }
        self._lines.write(json.dumps(line) + "\n")
        self._lines.flush()
        super().step(loss)


def main() -> None:
    """Be the example."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--audit", type=Path, required=True, metavar="DIR")
    own, arguments = parser.parse_known_args()
    AuditedSession.folder = own.audit
    example: Any = importlib.import_module("char_transformer")
    example.Session = AuditedSession
    example.main(arguments)


if __name__ == "__main__":
    main()
