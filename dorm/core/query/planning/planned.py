"""The contents of a plan (`dorm.core.query.planning.plans`)."""

from __future__ import annotations

import msgspec

from events import kinds as k


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
