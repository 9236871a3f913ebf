"""Which plug-ins are installed: entry points of the group `dorm.policies`.  Nothing is imported here."""

from __future__ import annotations

import re
from functools import cache
from importlib import metadata
from typing import NamedTuple

from dorm.policies.registry import LABORATORY, UnknownPolicy, built_in
from events.limits import clipped

GROUP = "dorm.policies"
_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_LONGEST = 200


class PluginError(UnknownPolicy):
    """A plug-in cannot be used; the message is one line that names its distribution."""

    code = "policy.plugin.broken"


class PolicyEntry(NamedTuple):
    """An entry point."""

    name: str
    plugin: str
    """Distribution and version: `acme-dorm 1.2.0`."""
    value: str
    """`package.module:Class`."""
    problem: str = ""
    """Reason why it cannot be used, as far as that is known without importing it."""


@cache
def discover() -> dict[str, PolicyEntry]:
    """Return all plug-ins by name, those that cannot be used with their problem."""
    points: dict[str, list[PolicyEntry]] = {}
    for point in _points():
        if not _of_laboratory(point) and point not in points.setdefault(
            point.name, []
        ):  # A folder may be on the path twice.
            points[point.name].append(point)
    return {name: _judged(sorted(same)) for name, same in sorted(points.items())}


@cache
def laboratory() -> dict[str, PolicyEntry]:
    """Return the policies of the laboratory by name; none if it is not installed."""
    return {point.name: point for point in sorted(_points()) if _of_laboratory(point)}


def _points() -> list[PolicyEntry]:
    return [PolicyEntry(point.name, _distribution(point), point.value) for point in metadata.entry_points(group=GROUP)]


def _of_laboratory(plugin: PolicyEntry) -> bool:
    """Return whether Dorm's own laboratory provides this policy, which is released together with Dorm."""
    return plugin.name in LABORATORY and plugin.plugin.partition(" ")[0] == "dorm-lab"


def _distribution(point: metadata.EntryPoint) -> str:
    try:
        name, version = (point.dist.name, point.dist.version) if point.dist is not None else ("", "")
    except Exception:  # Metadata may be broken in any way.
        name, version = "", ""
    return clipped(f"{name or 'an unknown distribution'} {version}".strip(), _LONGEST)


def _judged(same: list[PolicyEntry]) -> PolicyEntry:
    plugin = same[0]
    if built_in(plugin.name):
        problem = f"{plugin.plugin}: policy {plugin.name!r} is one of Dorm's own; the plug-in needs another name"
    elif not _NAME.fullmatch(plugin.name):
        problem = (
            f"{plugin.plugin}: {plugin.name[:80]!r} is not a policy name; "
            "use lower-case letters, digits, '-', '_' and '.'"
        )
    elif len(same) > 1:
        owners = ", ".join(each.plugin for each in same)
        problem = f"policy {plugin.name!r} comes from several distributions ({owners}); uninstall all but one"
    else:
        return plugin
    return plugin._replace(problem=problem, plugin=", ".join(dict.fromkeys(each.plugin for each in same)))
