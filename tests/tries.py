"""How often a test tries a property of every seed or example: rarely in `make test`, eight times as often in
`make test-soak`, and many times in `make test-long`.

The first tries show that a test can fail, and find most mistakes.  More tries of the same find rare seeds; no guarantee
depends on them alone.
"""

from __future__ import annotations

import os

LONG = os.environ.get("DORM_TESTS") == "long"
SOAK = os.environ.get("DORM_TESTS") == "soak"


def tries(usual: int, long: int) -> int:
    if LONG:
        return long
    return min(8 * usual, long) if SOAK else usual


def step(usual: int) -> int:
    """To try each such case of a long list: all of them in soak and long runs."""
    return 1 if LONG or SOAK else usual
