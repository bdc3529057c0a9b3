"""The char model of trainer/examples, as `make bench-recovery` runs it: each rank writes a line per completed step."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from spotsup_trainer.session import Session
from worker import Marks  # type: ignore[import-not-found]  # beside this file, where Python looks for it


def main() -> None:
    """Train with the others."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--marks", type=Path, required=True, help="folder for the lines per step; must exist")
    parser.add_argument("--examples", required=True, help="the folder with char_transformer.py")
    parser.add_argument("--checkpoint-every", required=True)
    options = parser.parse_args()

    class Marked(Session):
        """Marks a step as complete where every rank has its gradients, before it may have to park."""

        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            super().__init__(*arguments, **keywords)
            self._marks = Marks(options.marks, os.environ["SPOTSUP_NODE_ID"])

        def step(self, loss: Any = None) -> None:
            self._marks.completed(self.steps_done + 1)
            super().step(loss)

    sys.path.insert(0, options.examples)
    example: Any = importlib.import_module("char_transformer")
    example.Session = Marked
    example.main(["--steps", str(10**9), "--epochs", str(10**6), "--checkpoint-every", options.checkpoint_every])


if __name__ == "__main__":
    main()
