"""Prices as clouds take them in requests. Pure."""

from __future__ import annotations

from decimal import ROUND_DOWN, Decimal


def decimal_text(usd: float) -> str:
    """Return a number as people write it, without an exponent."""
    return f"{Decimal(str(usd)):f}"


def rounded_down(usd: float, decimals: int) -> float:
    """Return a number with at most so many decimals, and never above what was given."""
    return float(Decimal(str(usd)).quantize(Decimal(1).scaleb(-decimals), ROUND_DOWN))
