"""All targets of the fuzz, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fuzz import targets_core, targets_events, targets_files, targets_policies, targets_wire

if TYPE_CHECKING:
    from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        *targets_events.TARGETS,
        *targets_core.TARGETS,
        *targets_files.TARGETS,
        *targets_policies.TARGETS,
        *targets_wire.TARGETS,
    )
}
