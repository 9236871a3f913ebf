"""Policies by name.  To add one, implement `problem.Policy` in its own module and register it here.

    problem     what a policy takes and returns
    optimizer   `dorm`: the paper's utilization-fairness optimizer, near the exact optimum at any size
    exact       `dorm-exact`: the same goals solved exactly, the reference
    speed       `dorm-speed`: the same promises, with containers where they finish most work
                `dorm-speed-exact`: the same as one mixed-integer program, its reference
    static      `static`: fixed partitions, first come first served, the paper's baseline
    fifo        `fifo`: first come, first served, each with everything that it asks for
    drf         `drf`: weighted dominant resource fairness, container by container
    laboratory  names and parameters of the policies that only papers compare, which the distribution `dorm-lab` has
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
    fixed_counts  of `static` and `fifo`: containers that an operator fixes
    packing     of the baselines: partitions on few nodes
    reasons     why an app has less than its n_max
    answer      from counts by node to the recorded allocation

Modules of policies are loaded on first use: the solver takes a while to import, and most commands need none.

Other distributions may provide policies as plug-ins (`dorm.plugins`).  A name that is not Dorm's own is looked up there, by
the same import on demand, so that policies themselves need no code that starts processes.  So are the policies of the
laboratory, which run in the caller's process as Dorm's own.

The fold must not depend on installed packages, so it only uses `built_in` and `check_params`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from dorm.policies import laboratory
from events.errors import DormError

if TYPE_CHECKING:
    from typing import Protocol

    from dorm.policies.problem import Policy

    class Plugins(Protocol):
        """The interface of `dorm.plugins`."""

        def names(self) -> list[str]: ...

        def policy(self, name: str) -> Policy: ...

        def laboratory_names(self) -> list[str]: ...

        def laboratory_policy(self, name: str) -> Policy: ...


_REGISTRY = {
    "dorm": ("dorm.policies.dorm.optimizer", "OptimizerPolicy"),
    "dorm-exact": ("dorm.policies.exact.policy", "ExactPolicy"),
    "dorm-speed": ("dorm.policies.speed.policy", "SpeedPolicy"),
    "dorm-speed-exact": ("dorm.policies.speed.exact", "ExactSpeedPolicy"),
    "drf": ("dorm.policies.baselines.drf", "DrfPolicy"),
    "fifo": ("dorm.policies.baselines.fifo", "FifoPolicy"),
    "static": ("dorm.policies.baselines.static", "StaticPolicy"),
}

LABORATORY = (
    "app-level", "gavel", "market", "oasis", "optimus", "pollux",
    "shockwave", "sia", "srtf", "task-level", "themis", "tiresias",
)  # fmt: skip
"""Policies that were Dorm's own before the laboratory was a distribution: logs name them (`dorm.policies.laboratory`)."""
CHOOSE_BATCHES = ("dorm-speed", "dorm-speed-exact", "pollux", "sia")
"""The policies that return batch sizes."""

_PLUGINS = "dorm.plugins"
DEFAULT = "dorm"


class UnknownPolicy(DormError, ValueError):
    """No policy has this name; the message lists the known ones."""

    code = "policy.unknown"


def names() -> list[str]:
    """Return the names of Dorm's own policies that are installed here, sorted."""
    return sorted([*_REGISTRY, *_plugins().laboratory_names()])


def all_names() -> list[str]:
    """Return the names of Dorm's own policies, sorted: the laboratory's as well, whether or not they are installed."""
    return sorted([*_REGISTRY, *LABORATORY])


def built_in(name: str) -> bool:
    """Return whether this is one of Dorm's own policies, the laboratory's included; it need not be installed."""
    return name in _REGISTRY or name in LABORATORY


def assumes_pauses(name: str) -> bool:
    """Return whether a policy assumes its parameter `adjust_s` for every app whose pause was never measured.  A policy that
    looks at the pauses of other apps first has `assumes_pauses = False`."""
    return name not in _REGISTRY or getattr(_own(name), "assumes_pauses", True)


def installed(name: str) -> bool:
    """Return whether a policy of this name is installed here; a plug-in may still fail to load."""
    if name in LABORATORY:
        return name in _plugins().laboratory_names()
    return name in _REGISTRY or name in _plugins().names()


def policy(name: str) -> Policy:
    """Return the policy of this name.  Raises `UnknownPolicy`, also for a plug-in that cannot be loaded."""
    if name in _REGISTRY:
        return _own(name)
    plugins = _plugins()
    if name in LABORATORY:
        if name in plugins.laboratory_names():
            return plugins.laboratory_policy(name)
        text = f"policy {name!r} is part of the laboratory, which is not installed: pip install 'dorm[lab]'"
        raise UnknownPolicy(text, code="policy.not_installed")
    if name not in plugins.names():
        raise UnknownPolicy(f"unknown policy {name!r} (known: {', '.join([*names(), *plugins.names()])})")
    return plugins.policy(name)


def check_params(name: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of one of Dorm's own policies, checked; it need not be installed.  Raises as its own
    `check_params`."""
    if name in _REGISTRY:
        return _own(name).check_params(params)
    return laboratory.check_params(name, params)


def version_of(name: str) -> int | None:
    """Return the version of one of Dorm's own policies; None if it is of the laboratory, which is not installed."""
    return policy(name).version if installed(name) else None


@cache
def _own(name: str) -> Policy:
    module, attribute = _REGISTRY[name]
    return cast("Policy", getattr(import_module(module), attribute)())


def _plugins() -> Plugins:
    return cast("Plugins", import_module(_PLUGINS))
