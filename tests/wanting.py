"""What a test run lacked, in one line at its end: `not run: 212 tests want Docker, 90 Chromium`.

Tests are skipped on a machine without what they need, and a run that skipped a third of them looks like any other.  A test
says why it is skipped in words (`tests.lab.machines.engines.unavailable`, `pytest.importorskip`), and this module reads what
is missing from them.  A module that is skipped as a whole counts as one test.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_WANTED = (
    ("PyTorch (make test-engines)", "PyTorch|Lightning|transformers"),
    ("Open MPI", "mpirun"),
    ("Chromium", "chromium"),
    ("Prometheus", "promtool"),
    ("systemd", "systemd"),
    ("Docker", "(?i)docker|DORM_TEST_ENGINE|engine"),
    ("the history of the repository", "repository's history"),
    ("root", "root|mount"),
)
"""By what is missing: a pattern of the reasons that name it.  The first that is found counts."""


def line(reasons: Iterable[str]) -> str:
    """The line for the reasons of all skipped tests; nothing if none lacked anything."""
    found = Counter(next((name for name, pattern in _WANTED if re.search(pattern, reason)), "") for reason in reasons)
    others = found.pop("", 0)
    parts = [f"{count} {name}" for name, count in found.most_common()]
    if parts:
        count, _, name = parts[0].partition(" ")
        parts[0] = f"{count} {'test wants' if count == '1' else 'tests want'} {name}"
    if others:
        parts.append(f"{others} for other reasons")
    return f"not run: {', '.join(parts)}" if parts else ""
