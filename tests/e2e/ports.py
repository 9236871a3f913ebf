"""Ports for clusters of tests: two on one machine that share a range occasionally take the same port."""

from __future__ import annotations

import os

FIRST, EACH = 24_000, 250


def own_ports() -> tuple[int, int]:
    """Return a range that no other process of this test run uses."""
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = FIRST + EACH * (process % 32)
    return first, first + EACH - 1
