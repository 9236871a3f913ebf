"""Policies of other distributions: found by entry point, run in their own processes.

    finding   the entry points of the group `dorm.policies`: names, distributions, and which cannot be used
    proxy     a plug-in as a `dorm.policies.problem.Policy`: asks its process, and kills it when its time is over
    host      the program of that process
    wire      the messages between the two
    limits    how long one answer may take

A distribution declares `[project.entry-points."dorm.policies"]`, `NAME = "package.module:Class"`; calling the object gives a
`Policy` whose `name` is NAME.  A plug-in may raise, loop without end, end its process or print to standard output, and its
caller only loses the answer: every failure is a `PolicyFailure`.  It can never replace one of Dorm's own policies.

The policies of the laboratory (`dorm-lab`) are found in the same way, and run in the caller's process, as Dorm's own do.

`dorm.policies.registry` imports this package by name when it is asked for a policy that is not Dorm's own, so every program
that runs policies has plug-ins, and no program searches for them needlessly.

    PluginError     a plug-in cannot be loaded: it fails to import, has a wrong interface, or shares its name
    PolicyFailure   (of `dorm.policies.problem`) it gave no usable answer

Imports `dorm.policies` and `events`.  Start with `proxy`.
"""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, cast

from dorm.plugins.finding import GROUP, PluginError, PolicyEntry, discover, laboratory
from dorm.plugins.proxy import PluginPolicy, close, opened
from events.kinds import PolicyPlugin

if TYPE_CHECKING:
    from dorm.policies.problem import Policy

__all__ = [
    "PluginError", "PluginPolicy", "PolicyEntry", "close", "discover", "laboratory_names", "laboratory_policy", "loadable",
    "names", "policy",
]  # fmt: skip


MOST_ANNOUNCED = 64
"""The maximum number of plug-ins in one election, which has to fit into one message."""


def names() -> list[str]:
    """Return the names of all plug-ins that may be used, sorted."""
    return sorted(name for name, plugin in discover().items() if not plugin.problem)


def policy(name: str) -> PluginPolicy:
    """Return a plug-in, loaded in its process.  Raises PluginError."""
    plugin = discover().get(name)
    if plugin is None or plugin.problem:
        raise PluginError(plugin.problem if plugin is not None else f"there is no plug-in policy {name!r}")
    return opened(plugin)


def laboratory_names() -> list[str]:
    """Return the names of the laboratory's policies, sorted; none if it is not installed."""
    return list(laboratory())


@cache
def laboratory_policy(name: str) -> Policy:
    """Return a policy of the laboratory, in this process.  Raises PluginError."""
    plugin = laboratory()[name]
    try:
        return cast("Policy", metadata.EntryPoint(name, plugin.value, GROUP).load()())
    except (ImportError, AttributeError) as error:  # It is of another version.
        raise PluginError(f"policy {name!r} of {plugin.plugin} cannot be loaded: {error}") from None


def loadable() -> tuple[list[PolicyPlugin], list[str]]:
    """Load every plug-in.  Return a master's announcement of those that work, and one line for each that does not."""
    announced: list[PolicyPlugin] = []
    problems = []
    for name, plugin in sorted(discover().items()):
        if len(announced) == MOST_ANNOUNCED:
            problems.append(
                f"{plugin.plugin}: policy {name!r} is left out; a master announces at most {MOST_ANNOUNCED} plug-ins"
            )
            continue
        try:
            loaded = policy(name)
        except PluginError as error:
            problems.append(str(error))
        else:
            announced.append(PolicyPlugin(name, loaded.version, plugin.plugin, loaded.defaults))
    return announced, problems
