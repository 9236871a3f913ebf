"""How often a test tries what has to hold of every seed or example: some tries by default, many in `make test-long`.

A long run tries more of the same.  What it finds is a seed; no promise is left to it alone.
"""

from __future__ import annotations

import os

LONG = os.environ.get("DORM_TESTS") == "long"


def tries(usual: int, long: int) -> int:
    return long if LONG else usual
