"""What a plan assumes to happen first, errors in such assumptions, and what a plan then contains
(`dorm.core.query.plans`).

Types alone: readers of plans import no solver.
"""

from __future__ import annotations

from typing import Any

import msgspec

from events import kinds as k
from events.errors import DormError
from events.spec import AppSpec, CheckedSpec

# --- assumptions ------------------------------------------------------------------------------------------------------


class PlanError(DormError):
    """An assumption is impossible; one line for people."""

    code = "plan.impossible"


class UnknownSetting(PlanError):
    """An unknown policy, or a parameter or value that it does not accept: wrong for every cluster."""

    code = "settings.unknown"


class NewNodes(msgspec.Struct, frozen=True):
    """A number of nodes of one shape that join."""

    count: int
    capacity: dict[str, int] = {}
    """In base units; with `like` only the differences."""
    labels: dict[str, str] = {}
    like: str = ""
    """A node to copy capacity and labels from."""


class Assumed(msgspec.Struct, frozen=True):
    """Assumptions, which happen in this order: settings, nodes that join, are removed, are drained, are used again;
    apps that end, change, are held, released and restarted, and new ones."""

    settings: dict[str, Any] = {}
    """Parameters of the policy in force, and the master's times and folder by their names in the log; `policy` names another
    one (its parameters then start from its defaults)."""
    joins: tuple[NewNodes, ...] = ()
    removed: tuple[str, ...] = ()
    """Nodes that are gone permanently, as if their lease had ended."""
    drained: tuple[str, ...] = ()
    undrained: tuple[str, ...] = ()
    """Nodes whose drain ends."""
    cancelled: tuple[str, ...] = ()
    """Names or ids of apps."""
    cancelled_sweeps: tuple[str, ...] = ()
    """Names of sweeps, as `NAME` or `TENANT//NAME`."""
    updated: tuple[k.AppUpdated, ...] = ()
    """New bounds and weights."""
    edited: tuple[tuple[str, AppSpec], ...] = ()
    """Names or ids of apps, with the specs that they are to have."""
    held: tuple[str, ...] = ()
    released: tuple[str, ...] = ()
    restarted: tuple[str, ...] = ()
    specs: tuple[CheckedSpec, ...] = ()


# --- the contents of a plan -------------------------------------------------------------------------------------------


class PlannedApp(msgspec.Struct, frozen=True):
    """One app, before and after."""

    name: str
    id: str
    before: int
    after: int
    """Containers."""
    nodes_before: dict[str, int]
    nodes_after: dict[str, int]
    kind: str
    """`start`, `restart`, `live`, `stop`; '' if it stays exactly as it is."""
    adjust_s: float | None
    """Seconds of its work that this is expected to cost; None for `start` and `stop`."""
    measured: bool
    """Whether that was measured for this app; otherwise the policy's assumption."""
    lost_s: float = 0.0
    """Seconds of work that it loses as well, because it has reported no checkpoint and begins again."""
    end: str = ""
    """How it would end (`cancelled`, …), '' if it continues."""
    reason: k.Waiting | None = None
    """Why it would have no more than that, or nothing."""


class Figures(msgspec.Struct, frozen=True):
    """Figures of a whole cluster as placed."""

    nodes: int
    utilization: float
    utilization_max: int
    fairness_loss: float
    fairness_budget: float
    """2m·θ1; -1 if the policy has no θ1."""
    waiting: int
    """Apps without containers."""


class Round(msgspec.Struct, frozen=True):
    """One decision."""

    changed: int
    """Apps that it starts, restarts or stops."""
    overhead: int
    """Running apps that it changes without being forced to."""
    overhead_budget: int
    """The most it may change; -1 without such a budget."""
    excess: float
    status: str


class Plan(msgspec.Struct, frozen=True):
    """A plan.  `changes` is whether any app would have other containers than now."""

    seq: int
    """The log's position that the plan starts from."""
    at: int
    """The moment that the plan starts from (UTC ns)."""
    assumed: list[str]
    """In words."""
    changes: bool
    apps: list[PlannedApp]
    """In order of arrival."""
    before: Figures
    after: Figures
    rounds: list[Round]
    """Decisions that change something, at most as many as requested."""
    paused: str = ""
    """Who paused scheduling and why: then these are the decisions after `dorm resume`; "" while decisions are made."""
