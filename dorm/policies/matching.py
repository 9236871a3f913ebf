"""Whether a node's labels meet a requirement.  A module of its own: everything that folds a log needs it, and importing NumPy
takes long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from events.spec.requirements import LONGEST_DERIVED, requirement

if TYPE_CHECKING:
    from collections.abc import Mapping


def satisfies(text: str, labels: Mapping[str, str]) -> bool:
    """Return whether labels meet a requirement.  An unreadable one is never met: specs are checked, logs are not."""
    try:
        return requirement(text, LONGEST_DERIVED).matches(labels)
    except ValueError:
        return False
