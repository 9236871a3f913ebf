"""The parts of a story: chapters in the order of the log, each with its causes.

A chapter reports one thing that mattered to an app or a node, in words and as fields.  Facts that come by the thousand
(progress, single containers of a generation) are summed up in the chapter that ends them.  Times are log times (UTC ns),
durations are seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from events.kinds import Waiting

if TYPE_CHECKING:
    from collections.abc import Mapping

Places = dict[str, int]
"""Containers by node."""


class Cause(msgspec.Struct, frozen=True):
    """An earlier event on the log that led to a chapter."""

    position: str
    """`seq`, or `seq.index` in a round."""
    text: str


class Took(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One app's part in an exchange of room within a decision."""

    app: str
    """Id."""
    name: str
    did: str
    """`started`, `grew`, `moved`, `shrank` or `stopped`."""
    nodes: Places
    """Numbers of its containers that came to, or left, the nodes in question."""
    through: str = ""
    """Name of the app that moved into the room and so made room for this one; empty if the exchange was direct."""


class Changed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The change of an app's partition by one decision."""

    adjustment: str
    generation: int
    before: Places
    after: Places
    """Places as decided; if the change was overtaken, the app did not get it."""
    trigger: str
    """`events`, `idle` or `deadline`; see `events.kinds.Resized`."""
    policy: str
    waited_s: float = 0.0
    """Seconds that it had been without a place."""
    room_to: list[Took] = []
    """Apps that got, in the same decision, the room that this app gave up, and would not have fitted next to it."""
    room_from: list[Took] = []
    """Apps that gave up, in the same decision, the room that this app got and needed."""
    closed: list[str] = []
    """Nodes it gave up that took nothing new: drained, lost or gone."""
    still_waiting: list[str] = []
    """Names of apps that still waited for their n_min: room that no app took may be kept for them."""
    reason: Waiting | None = None
    """Reason why it has no more."""
    why: str = ""
    """Reason why an app is resized live, or is not (`events.kinds.LiveReason`)."""
    lost_s: float = 0.0
    """Seconds of work that it undoes, because the app has reported no checkpoint."""
    overtaken: bool = False
    """Something happened between the decision's basis and its round, so it never took effect."""


class Phases(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The cost of an adjustment so far, by phase.  None: unknown so far, or not reported by the app."""

    generation: int
    previous: int = 0
    """The generation that was stopped for it; 0 for a start."""
    prepare_s: float = 0.0
    """Seconds for which the previous generation worked on while this one was prepared."""
    stop_s: float = 0.0
    wait_s: float = 0.0
    start_s: float | None = None
    total_s: float | None = None
    """Seconds from the decision until all containers ran."""
    work_s: float | None = None
    """Seconds from then until the first step: to import, to load, to meet the others (`dorm.core.costs.works_at`)."""
    resumed_s: float | None = None
    """Seconds from the decision until the first step."""
    cost_s: float | None = None
    """Seconds of its work that it cost in total, pause and lost steps; see `dorm.core.costs`."""
    resume: bool = False
    checkpoint: int | None = None
    """The step that it continues from."""
    lost_steps: int = 0
    killed: int = 0
    """Containers that had not ended within their grace time."""
    lease_ended: list[str] = []


class Work(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Summary of the progress that a generation reported."""

    generation: int
    first_at: int
    first_step: int
    last_at: int
    last_step: int
    steps_per_s: float = 0.0
    """Over the whole life; 0 if unknown."""
    loss: float | None = None
    loss_is: str = ""
    """`nan`, `inf` or `-inf` if the last loss is not a finite number."""
    samples_per_s: float | None = None
    checkpoint: int | None = None


class Exit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a container ended by itself."""

    app: str
    generation: int
    slot: int
    node: str
    exit_code: int | None = None
    reason: str = ""
    message: str = ""


class AppTotals(msgspec.Struct, frozen=True, kw_only=True):
    """An app's life in numbers.  The three lengths add up to the time from its acceptance until its end, or until now."""

    waited_s: float
    """Seconds without a place."""
    paused_s: float
    """Seconds with a place, and not all containers of it running: starting, stopping, adjusting."""
    ran_s: float
    generations: int
    adjustments: int
    failures: int
    """Those that cost a retry."""
    lost_steps: int
    step: int


class Chapter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that mattered."""

    position: str
    time: int
    what: str
    """One word for programs: `submitted`, `shrunk`, `running`, `node_lost`, `planned`, `policy_failed`, …"""
    text: str
    causes: list[Cause] = []
    partition: Places | None = None
    """The app's places after this, if it changed them."""
    by: str = ""
    """User who requested it, if it was requested."""
    app: str = ""
    """Id, in a node's story, of the app that the chapter is about."""
    changed: Changed | None = None
    phases: Phases | None = None
    work: Work | None = None
    exit: Exit | None = None
    totals: AppTotals | None = None


def gained(before: Mapping[str, int], after: Mapping[str, int]) -> Places:
    """Return the nodes with more containers afterwards, and how many more."""
    return {node: count - before.get(node, 0) for node, count in sorted(after.items()) if count > before.get(node, 0)}


def kind_of(change: Changed, *, first: bool) -> str:
    """Return a decision's effect on a partition; `first` of its first generation."""
    before, after = sum(change.before.values()), sum(change.after.values())
    if not after:
        return "stopped"
    if not before or change.before == change.after:
        return "started" if first else "restarted"
    return "moved" if before == after else "grown" if after > before else "shrunk"
