"""A change of settings, tried without making it: the differences as text, violated constraints, affected nodes and apps."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.query.assumed import Assumed
from dorm.core.query.in_force import RETENTION, SHARES, in_force, shown
from dorm.core.query.plans import plan
from dorm.core.settings import all_after, asked_of, kept_until, parameters_in_force, times_of
from dorm.core.shared_folder import check_folder
from events.quantities import SECOND
from events.times import Rule, SettingRefused, asked, rules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dorm.core.settings import Plugins
    from dorm.core.state import Settings, State
    from events.kinds import PolicyChanged


# --- what a change would affect ---------------------------------------------------------------------------------------


class Touched(msgspec.Struct, frozen=True):
    """The consequences of a change; names are sorted."""

    refused: str
    """Reason why the change would be refused, "" if it would not."""
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
        after = all_after(state.settings, change, state.plugins)
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


# --- what a change would do -------------------------------------------------------------------------------------------


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
    """Containers by the next decision without the change."""
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
    """Reason why it would be refused."""
    changes: list[str]
    constraints: list[Constraint]
    nodes: TouchedNodes
    apps: TouchedApps


def tried(state: State, change: PolicyChanged, heard: Mapping[str, int], now: int) -> Tried:
    """Return the effect of a change.  `heard` is when each node that is up was last heard (UTC ns, as `now`).

    Raises SettingRefused for a policy or parameters that are wrong for every cluster, and PlanError if the policy fails."""
    before, plugins = state.settings, state.plugins
    lines = differences(before, asked_of(before, change, plugins), plugins)
    effect = touched(state, change, dict(heard), now)
    return document(effect, lines, [] if effect.refused else resized(state, change, effect.unmounted, now))


def document(effect: Touched, lines: list[str], apps: list[ResizedApp]) -> Tried:
    return Tried(
        accepted=not effect.refused,
        refused=effect.refused,
        changes=lines,
        constraints=[Constraint(rule.text, rule.holds) for rule in effect.rules],
        nodes=TouchedNodes(effect.leases, effect.lost, effect.unmounted),
        apps=TouchedApps(apps, effect.ended),
    )


def resized(state: State, change: PolicyChanged, unmounted: Sequence[str], now: int) -> list[ResizedApp]:
    """Return apps to which the next decision would give other containers than without the change."""
    after = all_after(state.settings, change, state.plugins)
    settings: dict[str, Any] = {}
    if (after.policy, after.params) != (state.settings.policy, state.settings.params):
        settings = {"policy": after.policy, **parameters_in_force(after, state.plugins)}
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
    old = {setting.name: setting for part in in_force(before, plugins) for setting in part}
    new = {setting.name: setting for part in in_force(after, plugins) for setting in part}
    for name, setting in new.items():
        was = shown(old[name], old[name].value) if name in old else None
        if was is None:
            lines.append(f"{setting.word}: {shown(setting, setting.value)}")
        elif old[name].value != setting.value:
            lines.append(f"{setting.word}: {was} -> {shown(setting, setting.value)}")
    lines += [f"{setting.word}: {shown(setting, setting.value)} -> retention" for name, setting in old.items()
              if name.startswith(f"{RETENTION}.") and name not in new]  # fmt: skip
    return lines or ["no value changes"]
