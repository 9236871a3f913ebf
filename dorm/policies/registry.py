"""Policies by name.

A policy of Dorm's own is a class in a module of its own under `dorm.policies`, and an entry of `_REGISTRY`.  The class
says all else about it, so nothing lists policies again:

    name, version    the name in logs; a version whose decisions differ from the one before
    summary          what it does, in a few words
    parameters       its parameters by name, each with default, range and meaning (`parameters`)
    check_params     the parameters in force, from some that are given
    allocate         its answer to a `problem.Problem`
    assumes_pauses   False for one that looks at the pauses of other apps before it assumes `adjust_s`

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
    from collections.abc import Mapping
    from typing import Protocol

    from dorm.policies.parameters import Other, Parameter
    from dorm.policies.problem import Policy

    class OwnPolicy(Policy, Protocol):
        """A policy of Dorm's own, which describes itself."""

        summary: str

        @property
        def parameters(self) -> Mapping[str, Parameter | Other]: ...

    class Plugins(Protocol):
        """The interface of `dorm.plugins`."""

        def names(self) -> list[str]: ...

        def policy(self, name: str) -> Policy: ...

        def laboratory_names(self) -> list[str]: ...

        def laboratory_policy(self, name: str) -> OwnPolicy: ...


_REGISTRY = {
    "dorm": ("dorm.policies.dorm.optimizer", "OptimizerPolicy"),
    "dorm-exact": ("dorm.policies.exact.exact_policy", "ExactPolicy"),
    "dorm-speed": ("dorm.policies.speed.speed_policy", "SpeedPolicy"),
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


def summary_of(name: str) -> str:
    """Return what one of Dorm's own policies does, in a few words; "" for any other, and for one that is not installed."""
    known = _described(name)
    return known.summary if known is not None else ""


def parameters_of(name: str) -> Mapping[str, Parameter | Other]:
    """Return the parameters of one of Dorm's own policies as it declares them; none as for `summary_of`."""
    known = _described(name)
    return known.parameters if known is not None else {}


def _described(name: str) -> OwnPolicy | None:
    if name in _REGISTRY:
        return _own(name)
    if name not in LABORATORY or not installed(name):
        return None
    try:
        return _plugins().laboratory_policy(name)
    except UnknownPolicy:  # It cannot be loaded; who needs its answers learns why.
        return None


@cache
def _own(name: str) -> OwnPolicy:
    module, attribute = _REGISTRY[name]
    return cast("OwnPolicy", getattr(import_module(module), attribute)())


def _plugins() -> Plugins:
    return cast("Plugins", import_module(_PLUGINS))
