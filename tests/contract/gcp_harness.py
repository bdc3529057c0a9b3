"""Compute Engine's harness."""

from __future__ import annotations

from functools import partial

from tests.contract.cloud_harness import opened as _opened

opened = partial(_opened, "gcp")
