"""Checks of numbers among the options of a part."""

from __future__ import annotations

import math
from typing import Any


def out_of_range(options: Any, **intervals: str) -> list[str]:
    """Return a problem for each option that lies outside its interval, such as ``temperature="(0, inf)"``.

    None is in every interval; infinity, NaN and integers from 2**63 on are in none.
    """
    problems = []
    for name, interval in intervals.items():
        value, (low, high) = vars(options)[name], interval[1:-1].split(", ")
        if value is None:
            continue
        if isinstance(value, int) and value >= 2**63:
            problems.append(f"{name} must be below 2**63")
        elif isinstance(value, float) and not math.isfinite(value):
            problems.append(f"{name} must be finite, not {value}")
        elif not (value >= float(low) if interval[0] == "[" else value > float(low)) or not (
            value <= float(high) if interval[-1] == "]" else value < float(high)
        ):
            bound = f"{'at least' if interval[0] == '[' else 'above'} {low}"
            rule = f"be {bound}" if high == "inf" else f"lie in {interval}"
            problems.append(f"{name} must {rule}, not {value}")
    return problems
