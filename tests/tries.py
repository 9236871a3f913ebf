"""How often a test tries a property of every seed or example: some tries by default, many in `make test-long`.

A long run tries more of the same.  It finds seeds; no guarantee depends on it alone.
"""

from __future__ import annotations

import os

LONG = os.environ.get("DORM_TESTS") == "long"


def tries(usual: int, long: int) -> int:
    return long if LONG else usual
