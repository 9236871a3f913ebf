"""The effects of a change of settings, without making it: the differences as text, violated constraints, affected
nodes and apps."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.query.in_force import RETENTION, SHARES, in_force, shown
from dorm.core.query.planning.assumed import Assumed
from dorm.core.query.planning.plans import plan
from dorm.core.query.touched import touched
from dorm.core.settings import all_after, asked_of, parameters_in_force

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dorm.core.query.touched import Touched
    from dorm.core.settings import Plugins
    from dorm.core.state import Settings, State
    from events.kinds import PolicyChanged


class Constraint(msgspec.Struct, frozen=True):
    """A rule that times have to keep."""

    text: str
    holds: bool


class TouchedNodes(msgspec.Struct, frozen=True):
    """Names of nodes."""

    lease_changes: list[str]
    would_be_lost: list[str]
    would_be_unmounted: list[str]


class ResizedApp(msgspec.Struct, frozen=True):
    """An app that the next decision would give other containers than without the change."""

    name: str
    id: str
    now: int
    otherwise: int
    """By the next decision without the change."""
    then: int


class TouchedApps(msgspec.Struct, frozen=True):
    """Apps."""

    resized: list[ResizedApp]
    dropped: list[str]
    """Ended apps that would be dropped at once, with output and checkpoints."""


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a change."""

    accepted: bool
    refused: str
    """Why it would be refused."""
    changes: list[str]
    constraints: list[Constraint]
    nodes: TouchedNodes
    apps: TouchedApps


def tried(state: State, change: PolicyChanged, heard: Mapping[str, int], now: int) -> Tried:
    """Return the effect of a change.  `heard` is when each node that is up was last heard (UTC ns, as `now`).

    Raises SettingRefused for a policy or parameters that are wrong for every cluster, and PlanError if the policy fails."""
    before, plugins = state.settings, state.policy_plugins
    lines = differences(before, asked_of(before, change, plugins), plugins)
    found = touched(state, change, dict(heard), now)
    return document(found, lines, [] if found.refused else resized(state, change, found.unmounted, now))


def document(found: Touched, lines: list[str], apps: list[ResizedApp]) -> Tried:
    return Tried(
        accepted=not found.refused,
        refused=found.refused,
        changes=lines,
        constraints=[Constraint(rule.text, rule.holds) for rule in found.rules],
        nodes=TouchedNodes(found.leases, found.lost, found.unmounted),
        apps=TouchedApps(apps, found.ended),
    )


def resized(state: State, change: PolicyChanged, unmounted: Sequence[str], now: int) -> list[ResizedApp]:
    """Return apps to which the next decision would give other containers than without the change."""
    after = all_after(state.settings, change, state.policy_plugins)
    settings: dict[str, Any] = {}
    if (after.policy, after.params) != (state.settings.policy, state.settings.params):
        settings = {"policy": after.policy, **parameters_in_force(after, state.policy_plugins)}
    if after.weights != state.settings.weights:
        settings[SHARES] = change.weights
    if not settings and not unmounted:
        return []
    without = {app.id: app for app in plan(copy.deepcopy(state), now).apps}
    then = plan(copy.deepcopy(state), now, Assumed(settings=settings, drained=tuple(unmounted))).apps
    return [
        ResizedApp(app.name, app.id, app.before, without[app.id].after, app.after)
        for app in then
        if app.id in without and app.nodes_after != without[app.id].nodes_after
    ]


def differences(before: Settings, after: Settings, plugins: Plugins) -> list[str]:
    """Return `theta2: 0.1 -> 0.2` for every changed setting."""
    lines = [f"policy: {before.policy} -> {after.policy}"] if before.policy != after.policy else []
    if before.checkpoints != after.checkpoints:
        lines.append(f"checkpoints: {before.checkpoints or 'by the nodes'} -> {after.checkpoints or 'by the nodes'}")
    old = {one.name: one for part in in_force(before, plugins) for one in part}
    new = {one.name: one for part in in_force(after, plugins) for one in part}
    for name, one in new.items():
        was = shown(old[name], old[name].value) if name in old else None
        if was is None:
            lines.append(f"{one.word}: {shown(one, one.value)}")
        elif old[name].value != one.value:
            lines.append(f"{one.word}: {was} -> {shown(one, one.value)}")
    lines += [f"{one.word}: {shown(one, one.value)} -> retention" for name, one in old.items()
              if name.startswith(f"{RETENTION}.") and name not in new]  # fmt: skip
    return lines or ["no value changes"]
