"""The example char_transformer.py, which has to lie beside this file, with a line per completed step and rank on which
samples that was trained on: spotsup_trainer.session.audit reads them.

    audited_example.py --audit DIR [--until FILE] [the example's own arguments]

With FILE it trains until the step that is named in it, once it is there: one that no rank has come to by then.
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
    until: Path | None
    options: Any  # the example's own
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
        if self.until and self.until.exists():
            self.options.steps = int(self.until.read_text())
        super().step(loss)


def main() -> None:
    """Be the example."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--audit", type=Path, required=True, metavar="DIR")
    parser.add_argument("--until", type=Path, metavar="FILE")
    own, arguments = parser.parse_known_args()
    example: Any = importlib.import_module("char_transformer")
    options = example.parse(arguments)
    AuditedSession.folder, AuditedSession.until, AuditedSession.options = own.audit, own.until, options
    example.Session = AuditedSession
    example.parse = lambda _: options
    example.main(arguments)


if __name__ == "__main__":
    main()
