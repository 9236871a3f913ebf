"""Policies by name.  To add one, implement `problem.Policy` in its own module and register it here.

    problem     what a policy takes and returns
    optimizer   `dorm`: the paper's utilization-fairness optimizer, near the exact optimum at any size
    exact       `dorm-exact`: the same goals solved exactly, the reference
    speed       `dorm-speed`: the same promises, with containers where they finish most work
                `dorm-speed-exact`: the same as one mixed-integer program, its reference
    static      `static`: fixed partitions, first come first served, the paper's baseline
    app_level   `app-level`: offers by DRF, kept until the app ends, as in Mesos
    task_level  `task-level`: slots for short tasks, assigned again each time, as in Sparrow
    tiresias    `tiresias`: the app with the least attained service goes first, and others are stopped for it, as in Tiresias
    optimus     `optimus`: each container goes where it shortens the remaining time most, as in Optimus
    oasis       `oasis`: apps are admitted by prices, and run by plans that are made at their arrival, as in OASiS
    pollux      `pollux`: the fairest mean of speed-ups by goodput, by a genetic search, as in Pollux
    sia         `sia`: one configuration for each app, by an integer program over goodputs, as in Sia
    fifo        `fifo`: first come, first served, each with everything that it asks for
    srtf        `srtf`: the app that ends soonest goes first, and others are stopped for it
    drf         `drf`: weighted dominant resource fairness, container by container
    gavel       `gavel`: max-min fairness over types of nodes that are not equally fast, in rounds
    themis      `themis`: finish-time fairness, by auctions among the apps that are worst off
    shockwave   `shockwave`: a market over the next rounds, in which late apps have larger budgets, as in Shockwave
    market      `market`: apps bid for nodes with budgets, and get parts in proportion to their bids
    goals       the goals of the first two, in order
    parameters  names, defaults and ranges
    integer     the problem as sorted integer arrays, and the exact score of an answer
    classes     equal rows of those arrays: nodes of one shape, nodes with the same room
    counts      of `dorm`: how many containers each app should have, as a linear program over classes of nodes
    choosing    of `dorm`: the few apps that change, by solving that program
    placing     of `dorm`: greedy placement by buckets of nodes
    exchanging  of `dorm`: containers that leave a node to others that use it better
    making_room of `dorm`: which apps shrink or move for an app that waits
    polish      of `dorm`: small exact programs over a few apps at a time
    model       the mixed-integer program of `dorm-exact` and of that polish
    greedy      the answer that `dorm-exact` starts from, and how `static` places
    throughput  of `pollux` and `sia`: how fast an app learns by containers, placement and batch size
    fixed_counts  of `static`, `tiresias`, `fifo`, `srtf`, `gavel` and `shockwave`: containers that an operator fixes
    packing     of the baselines: partitions on few nodes
    reasons     why an app has less than its n_max
    answer      from counts by node to the recorded allocation

Modules of policies are loaded on first use: the solver takes a while to import, and most commands need none.

Other distributions may provide policies as plug-ins (`dorm.plugins`).  A name that is not Dorm's own is looked up there, by
the same import on demand, so that policies themselves need no code that starts processes.  The fold must not depend on
installed packages, so it only uses `built_in`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, cast

from events.errors import DormError

if TYPE_CHECKING:
    from typing import Protocol

    from dorm.policies.problem import Policy

    class Plugins(Protocol):
        """The interface of `dorm.plugins`."""

        def names(self) -> list[str]: ...

        def policy(self, name: str) -> Policy: ...


_REGISTRY = {
    "app-level": ("dorm.policies.baselines.app_level", "AppLevelPolicy"),
    "dorm": ("dorm.policies.dorm.optimizer", "OptimizerPolicy"),
    "dorm-exact": ("dorm.policies.exact.policy", "ExactPolicy"),
    "dorm-speed": ("dorm.policies.speed.policy", "SpeedPolicy"),
    "dorm-speed-exact": ("dorm.policies.speed.exact", "ExactSpeedPolicy"),
    "drf": ("dorm.policies.baselines.drf", "DrfPolicy"),
    "fifo": ("dorm.policies.baselines.fifo", "FifoPolicy"),
    "gavel": ("dorm.policies.gavel.policy", "GavelPolicy"),
    "market": ("dorm.policies.market.policy", "MarketPolicy"),
    "oasis": ("dorm.policies.oasis.policy", "OasisPolicy"),
    "optimus": ("dorm.policies.baselines.optimus", "OptimusPolicy"),
    "pollux": ("dorm.policies.goodput.pollux", "PolluxPolicy"),
    "shockwave": ("dorm.policies.shockwave.policy", "ShockwavePolicy"),
    "sia": ("dorm.policies.goodput.sia", "SiaPolicy"),
    "srtf": ("dorm.policies.baselines.srtf", "SrtfPolicy"),
    "static": ("dorm.policies.baselines.static", "StaticPolicy"),
    "task-level": ("dorm.policies.baselines.task_level", "TaskLevelPolicy"),
    "themis": ("dorm.policies.baselines.themis", "ThemisPolicy"),
    "tiresias": ("dorm.policies.baselines.tiresias", "TiresiasPolicy"),
}

_PLUGINS = "dorm.plugins"
DEFAULT = "dorm"


class UnknownPolicy(DormError, ValueError):
    """No policy has this name; the message lists the known ones."""

    code = "policy.unknown"


def names() -> list[str]:
    """Return the names of Dorm's own policies, sorted."""
    return sorted(_REGISTRY)


def built_in(name: str) -> bool:
    """Return whether this is one of Dorm's own policies."""
    return name in _REGISTRY


def assumes_pauses(name: str) -> bool:
    """Return whether a policy assumes its parameter `adjust_s` for every app whose pause was never measured.  A policy that
    looks at the pauses of other apps first has `assumes_pauses = False`."""
    return not built_in(name) or getattr(_own(name), "assumes_pauses", True)


def installed(name: str) -> bool:
    """Return whether a policy of this name is installed here; a plug-in may still fail to load."""
    return name in _REGISTRY or name in _plugins().names()


def policy(name: str) -> Policy:
    """Return the policy of this name.  Raises `UnknownPolicy`, also for a plug-in that cannot be loaded."""
    if name in _REGISTRY:
        return _own(name)
    plugins = _plugins()
    if name not in plugins.names():
        raise UnknownPolicy(f"unknown policy {name!r} (known: {', '.join([*names(), *plugins.names()])})")
    return plugins.policy(name)


@cache
def _own(name: str) -> Policy:
    module, attribute = _REGISTRY[name]
    return cast("Policy", getattr(import_module(module), attribute)())


def _plugins() -> Plugins:
    return cast("Plugins", import_module(_PLUGINS))
