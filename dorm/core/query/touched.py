"""Which apps and nodes a change of settings would affect, computed before it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm.core.settings import all_after, kept_until, times_of
from dorm.core.shared_folder import check_folder
from events.quantities import SECOND
from events.times import Rule, SettingRefused, asked, rules

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.core.state import Settings, State
    from events.kinds import PolicyChanged


class Touched(msgspec.Struct, frozen=True):
    """The consequences of a change; names are sorted."""

    refused: str
    """Why the change would be refused, "" if it would not."""
    rules: list[Rule]
    """Every constraint between the times that would result."""
    leases: list[str]
    """Nodes whose time to keep running after a cut-off would change."""
    lost: list[str]
    """Nodes that are up but silent for longer than the new grace time: lost, unless they are heard within it."""
    ended: list[str]
    """Ended apps that would be dropped at once, with their containers, logs and checkpoints."""
    unmounted: list[str]
    """Nodes that would get no more containers: they have another folder of checkpoints."""


def touched(state: State, change: PolicyChanged, heard: Mapping[str, int], now: int) -> Touched:
    """Return the consequences at `now` (UTC ns); `heard` is when each node was last heard (UTC ns).  Changes nothing."""
    known = times_of(state.settings)
    times = asked(known, change)
    refused = ""
    after: Settings = state.settings
    try:
        after = all_after(state.settings, change, state.policy_plugins)
        check_folder(state, change)
    except SettingRefused as error:
        refused = str(error)
    up = [node for _, node in sorted(state.nodes.items()) if node.condition == "up"]
    grace = int(times.node_grace_s * SECOND)
    return Touched(
        refused=refused,
        rules=rules(times),
        leases=[node.id for node in up] if times.node_lease_s != known.node_lease_s and not refused else [],
        lost=[node.id for node in up if node.id in heard and now - heard[node.id] > grace],
        ended=[
            app.id
            for _, app in sorted(state.apps.items())
            if not refused and app.ended and kept_until(after, app) <= min(now, kept_until(state.settings, app) - 1)
        ],
        unmounted=[
            node.id
            for node in up
            if after.checkpoints and node.checkpoints and node.checkpoints != after.checkpoints and not node.foreign
        ],
    )
