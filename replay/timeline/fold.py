"""Makes a timeline from a log: folds it once, batch by batch in a thread, within bounds of memory.

The watcher looks only at apps and nodes that a record can have changed (`dorm.core.folded`).  Most records of a log
report progress, and cost nothing here.  Next to the apps and nodes it keeps the cluster's own `Figures` over time: apps
that wait, and the part of each resource that is decided and held.

`Bounds` limit what it keeps.  Beyond them, changes within one grain of time are merged, and grains double until it fits.
Steps, decisions, marks and partitions each have their own bound and grain, so a flood of one does not thin the others.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from math import isfinite
from typing import TYPE_CHECKING, Any

from dorm.core.gates import shown_reason
from dorm.core.query.views import sizes
from events import kinds as k
from events.instants import length_of_phase
from events.quantities import SECOND
from replay.moments import AtSequence, MomentError, not_in_log, time_at
from replay.story.story_words import is_first_failure, policy_failed
from replay.timeline.labels import exit_text, plans_text, scheduling_text, settings_text
from replay.timeline.lanes import (
    AppLane,
    Change,
    Decision,
    Mark,
    NodeLane,
    Partition,
    Phase,
    Reason,
    Size,
    Steps,
    Timeline,
    find_apps,
)
from replay.travel import fold, state_at

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from dorm.core.folded import Folded
    from dorm.core.state import App, Node, State
    from events.log.interface import ReadableLog
    from events.log.records import Record
    from replay import Progress
    from replay.moments import Moment


# --- bounds -----------------------------------------------------------------------------------------------------------

POINTS = 150_000
"""Most changes that a picture keeps, in all lanes together: the room of a page of some megabytes."""
DECISIONS = 4000
MARKS = 4000
PARTITIONS = 20_000
"""Most of each; a decision takes as much room as thirty changes."""
_FINEST = 16_384
"""The first grain is this fraction of the picture's time."""


class Bounds:
    """Keeps one picture within the bounds."""

    def __init__(self, picture: Timeline) -> None:
        self._picture = picture
        self._grains = {"points": 0, "decisions": 0, "marks": 0, "partitions": 0}

    @property
    def grain(self) -> int:
        """The coarsest grain in use (ns), 0 if everything was kept."""
        return max(self._grains.values())

    def keep(self, now: int) -> None:
        """Thin what exceeds its bound.  `now`: log time so far."""
        picture, length = self._picture, max(now - self._picture.start, 1)
        while sum(map(len, picture.all_steps())) > POINTS and (grain := self._coarser("points", length)):
            for steps in picture.all_steps():
                steps.thin(grain)
        while len(picture.decisions) > DECISIONS and (grain := self._coarser("decisions", length)):
            picture.decisions = _thin_decisions(picture.decisions, grain)
        while len(picture.marks) > MARKS and (grain := self._coarser("marks", length)):
            picture.marks = _thin_marks(picture.marks, grain)
        while self._partitions() > PARTITIONS and (grain := self._coarser("partitions", length)):
            for lane in picture.apps.values():
                _thin_partitions(lane, grain)

    def _partitions(self) -> int:
        return sum(len(lane.partitions) for lane in self._picture.apps.values())

    def _coarser(self, what: str, length: int) -> int:
        """Double the grain; return 0 once it covers all of the time, since then the lanes alone exceed the bound."""
        before = self._grains[what]
        if before > length:
            return 0
        self._grains[what] = max(2 * before, length // _FINEST, 1)
        return self._grains[what]


def _thin_decisions(decisions: Iterable[Decision], grain: int) -> list[Decision]:
    kept: list[Decision] = []
    for decision in decisions:
        if not kept or kept[-1].time // grain != decision.time // grain:
            kept.append(decision)
            continue
        count = kept[-1].stands_for + decision.stands_for
        if decision.all_changes > kept[-1].all_changes:
            kept[-1] = decision
        kept[-1].stands_for = count
    return kept


def _thin_marks(marks: Iterable[Mark], grain: int) -> list[Mark]:
    """Keep one mark for each grain and kind."""
    kept: dict[tuple[int, str], Mark] = {}
    for one in marks:
        key = (one.time // grain, one.kind)
        before = kept.get(key)
        count = one.stands_for + (before.stands_for if before else 0)
        if before is None or one.weight > before.weight:
            kept[key] = one
        kept[key].stands_for = count
    return sorted(kept.values(), key=lambda one: one.time)


def _thin_partitions(lane: AppLane, grain: int) -> None:
    """Keep the last partition decided in each grain of time."""
    kept = {partition.decided_at // grain: partition for partition in lane.partitions.values()}
    lane.partitions = {one.number: one for one in kept.values()}


# --- figures ----------------------------------------------------------------------------------------------------------


class Figures:
    """Kept up to date by app and by change of nodes, as a sum over all of them at each record would be expensive."""

    def __init__(self) -> None:
        self._live: dict[str, tuple[dict[str, int], dict[str, int], dict[str, int], bool]] = {}
        """For each app that counts: demand, containers decided and held by node, and whether it waits."""
        self._decided = _Taken()
        self._held = _Taken()
        self._waits = 0
        self._totals: dict[str, int] = {}
        """Total capacity of usable nodes."""
        self._unusable: dict[str, dict[str, int]] = {}
        """Capacity of each other node."""

    def count(self, state: State) -> None:
        """Count the capacity of the nodes, after one of them changed."""
        self._totals, self._unusable = {}, {}
        for node in state.nodes.values():
            if node.usable:
                _add(self._totals, node.capacity, 1)
            else:
                self._unusable[node.id] = node.capacity

    def take(self, app: App, held: dict[str, int]) -> None:
        """Count an app as it is now; `held` counts its containers that may run, by node."""
        decided = sizes(app)
        waits = not app.ended and app.current is None
        before = self._live.pop(app.id, None)
        if before is not None:
            self._waits -= before[3]
            self._decided.add(before[0], before[1], -1)
            self._held.add(before[0], before[2], -1)
        if decided or held or waits:
            self._live[app.id] = (app.demand, decided, held, waits)
            self._waits += waits
            self._decided.add(app.demand, decided, 1)
            self._held.add(app.demand, held, 1)

    def put(self, picture: Timeline, time: int) -> None:
        """Add the present figures, at log time `time`, to the picture."""
        picture.waiting.put(time, self._waits)
        for taken, by_resource in ((self._decided, picture.decided), (self._held, picture.held)):
            totals = taken.totals(self._totals, self._unusable)
            for name in sorted({*totals, *picture.decided}):
                total = totals.get(name, 0)
                part = round(taken.amounts.get(name, 0) / total, 6) if total else 0.0
                by_resource.setdefault(name, Steps()).put(time, part)


class _Taken:
    """Resources that containers take in total, and how many containers are on each node."""

    def __init__(self) -> None:
        self.amounts: dict[str, int] = {}
        self._counts: dict[str, int] = {}

    def add(self, demand: dict[str, int], by_node: dict[str, int], sign: int) -> None:
        _add(self.amounts, demand, sign * sum(by_node.values()))
        _add(self._counts, by_node, sign)

    def totals(self, usable: dict[str, int], unusable: dict[str, dict[str, int]]) -> dict[str, int]:
        """Return the capacity that these are a part of: a drained or lost node counts as long as its containers do."""
        totals = dict(usable)
        for name, capacity in unusable.items():
            if self._counts.get(name):
                _add(totals, capacity, 1)
        return totals


def _add(amounts: dict[str, int], demand: dict[str, int], count: int) -> None:
    for name, amount in demand.items():
        amounts[name] = amounts.get(name, 0) + amount * count


# --- the watcher ------------------------------------------------------------------------------------------------------

CHANGES = 40
"""Most changes of a decision that are kept, and most reasons; the totals are kept too."""
REASONS = 12
_NODE_FACTS: tuple[type[Any], ...] = tuple(
    fact for fact in k.EVENTS if fact.KIND.on == "node" and fact.KIND.stored == "round"
)
_APP_FACTS: tuple[type[Any], ...] = tuple(
    fact
    for fact in k.EVENTS
    if fact.KIND.on == "app" and fact.KIND.stored == "round" and fact not in (k.AppRejected, k.AppPlanned, k.AppKilled)
)
"""A refusal and a plan are marks of the cluster, and a kill shows in its containers."""
_NODE_WORDS = {
    "NodeJoined": "joined",
    "NodeLeft": "left",
    "NodeLost": "lost",
    "NodeRecovered": "heard again",
    "NodeLeaseEnded": "lease ended",
    "NodeSuspected": "suspect",
    "NodeTrusted": "trusted again",
    "NodeTrustRequested": "trusted again",
}


async def timeline(
    log: ReadableLog,
    since: Moment | None = None,
    until: Moment | None = None,
    *,
    names: Collection[str] = (),
    progress: Progress | None = None,
) -> Timeline:
    """Return what happened between two moments, by default from the log's start to its end.

    Reasons of the apps in `names` are kept with every decision, before those of others.  Raises MomentError for a moment that
    the log does not reach or an end before the start, what `log.read` raises, and GapError.
    """
    end = await log.end()
    begin, start = await _place(log, AtSequence(await log.start()) if since is None else since, end)
    last, finish = await _place(log, AtSequence(end) if until is None else until, end)
    if last < begin:
        raise MomentError(f"the end, sequence {last}, is before the start, {begin}", code="moment.end_before_start")
    state = await state_at(log, AtSequence(begin), progress=progress)
    watcher = Watcher(state, start, frozenset(names))
    if last > begin:
        async with aclosing(log.read(after=begin)) as batches:
            async for batch in batches:
                reached = await asyncio.to_thread(watcher.fold, state, batch, last)
                if progress:
                    progress(state.seq, last)
                if reached:
                    break
    return await asyncio.to_thread(watcher.done, state, finish if last < end else 0)


async def _place(log: ReadableLog, moment: Moment, end: int) -> tuple[int, int]:
    """Return the last record at or before a moment, and the moment in log time, 0 for a moment given as a sequence.

    Raises MomentError."""
    start = await log.start()
    if isinstance(moment, AtSequence):
        if not start <= moment.seq <= end:
            raise not_in_log(moment.seq, start, end)
        return moment.seq, 0
    time = await time_at(log, moment, end)
    return await log.at_time(time), time


class Watcher:
    """Observes a fold from a state on.  `picture` is complete once `done` was called."""

    def __init__(self, state: State, start: int = 0, wanted: frozenset[str] = frozenset()) -> None:
        """`start` is the log time from which to draw, if that is after the state's."""
        self._time = max(state.time, start) if state.seq else 0
        self.picture = Timeline(start=self._time, end=self._time, first=state.seq, last=state.seq)
        self._wanted = wanted
        self._figures = Figures()
        self._known: dict[str, App] = {}
        """Apps that can still change: an app that ends may leave the state in the same round."""
        self._on: dict[str, dict[str, int]] = {}
        """For each app that has containers: their number by node."""
        self._void_seen = 0
        self._resized: dict[int, str] = {}
        """Position of the decision in each of the latest rounds."""
        self._bounds = Bounds(self.picture)
        if state.seq:
            for node in state.nodes.values():
                self._look_at_node(node)
            self._figures.count(state)
            for app in state.apps.values():
                self._look_at(app, f"as it was at {state.seq}")
            self._figures.put(self.picture, self._time)

    def fold(self, state: State, batch: Sequence[Record], last: int) -> bool:
        """Fold one batch; return whether `last` was reached."""
        reached = fold(state, batch, last, seen=self.see)
        self.keep_within_bounds()
        return reached

    def keep_within_bounds(self) -> None:
        """Thin what exceeds its bound; a caller of `see` does this regularly."""
        self._bounds.keep(self._time)

    def done(self, state: State, finish: int = 0) -> Timeline:
        """Return the picture, with its end (not before `finish`, log time) and notes on its omissions."""
        picture = self.picture
        picture.end, picture.last = max(state.time, picture.start, finish), state.seq
        picture.nodes = dict(sorted(picture.nodes.items()))
        picture.grain = self._bounds.grain
        if picture.grain:
            picture.notes.append(
                f"Changes less than {length_of_phase(picture.grain)} apart may be drawn as one, since there are so many; "
                "a shorter time (--since, --until) shows all of them."
            )
        if self._void_seen:
            rounds = "round" if self._void_seen == 1 else "rounds"
            picture.notes.append(f"Not shown: {self._void_seen} void {rounds} of deposed masters.")
        return picture

    def see(self, state: State, record: Record, folded: Folded) -> None:
        """Follow one record after it was folded."""
        event = folded.event
        self._time = max(state.time, self.picture.start)
        if not self.picture.start:
            self.picture.start = state.time
        if isinstance(event, k.AppProgressed | k.AppCheckpointed) or folded.outcome == "forbidden":
            return
        cause = f"{type(event).__name__} {state.seq}"
        if isinstance(event, k.Round):
            self._round(state, event, folded)
        elif isinstance(event, k.ContainerStarted | k.ContainerExited):
            self._container(state, event, cause)
        elif isinstance(event, k.MembershipChanged):
            if event.app in state.apps:
                self._look_at(state.apps[event.app], cause)
                self._membership(state, event)
        elif isinstance(event, k.AppResizeRequested):
            self._size_requested(state, event, folded)
            return
        elif event.KIND.on == "node" and folded.everything:
            self._node_event(state, event, cause)
        elif isinstance(event, k.PolicyChanged):
            self._mark("cluster", str(state.seq), "settings changed", settings_text(event), weight=50)
            return
        elif isinstance(event, k.SchedulingPaused | k.SchedulingResumed):
            self._mark("cluster", str(state.seq), scheduling_text(event), event.reason, weight=50)
            return
        elif isinstance(event, k.AppNoted):
            for name in folded.apps:
                self._mark("note", str(state.seq), f"{event.by} noted", event.text, app=name, weight=15)
            return
        elif event.KIND.by_name:
            for name in folded.apps:
                self._look_at(state.apps[name], cause)
        else:
            return
        self._figures.put(self.picture, self._time)

    # --- what a record touches ------------------------------------------------------------------------------------------

    def _round(self, state: State, event: k.Round, folded: Folded) -> None:
        if folded.outcome == "void":
            self._void_seen += 1
            return
        touched: dict[str, str] = {}
        everything = ""
        for index, (fact, effect) in enumerate(zip(event.events, folded.effect.facts, strict=True)):
            position = f"{state.seq}.{index}"
            cause = f"{type(fact).__name__} {position}"
            everything = cause if effect.everything else everything
            if not isinstance(fact, k.AppPlanned):  # It changes nothing that is drawn of an app.
                touched.update(dict.fromkeys(effect.apps_of(fact), cause))
            if isinstance(fact, k.Resized):
                self._resized = dict(list(self._resized.items())[-64:]) | {state.seq: position}
                self._decision(state, event, fact, position)
                touched.update(dict.fromkeys(fact.reasons, cause))
            elif isinstance(fact, _NODE_FACTS):
                self._node_fact(state, fact, position)
            elif isinstance(fact, _APP_FACTS):
                self._app_fact(state, fact, position)
            elif isinstance(fact, k.PolicyFailed):
                if is_first_failure(state, fact):
                    self._mark("cluster", position, f"policy failed: {fact.code}", policy_failed(fact), weight=60)
            elif isinstance(fact, k.AppRejected):
                what = "submission refused" if fact.refused == "submission" else "update refused"
                self._mark("cluster", position, what, f"{fact.app or 'without a name'}: {fact.reason}", weight=5)
            elif isinstance(fact, k.MasterElected):
                self._mark("cluster", position, f"master elected, epoch {fact.epoch}", fact.build, weight=100)
        self._planned(state, event)
        for name in {**self._known, **touched} if everything else touched:
            app = state.apps.get(name) or self._known.get(name)
            if app is not None:
                self._look_at(app, touched.get(name, everything))
        for fact in event.events:
            if isinstance(fact, k.GenerationReleased):
                self._released(fact)

    def _planned(self, state: State, event: k.Round) -> None:
        """Mark the plans of a round, which may be hundreds, once."""
        plans = [(i, fact) for i, fact in enumerate(event.events) if isinstance(fact, k.AppPlanned)]
        if plans:
            what = "1 app planned" if len(plans) == 1 else f"{len(plans)} apps planned"
            self._mark(
                "cluster", f"{state.seq}.{plans[0][0]}", what, plans_text(state, [f for _, f in plans]), weight=6
            )

    def _container(self, state: State, event: k.ContainerStarted | k.ContainerExited, cause: str) -> None:
        app = state.apps.get(event.app)
        if app is None:
            return
        lane = self.picture.apps.get(app.id)
        before = lane.sizes.last.held if lane and lane.sizes.last else 0
        self._look_at(app, cause)
        lane = self.picture.apps.get(app.id)
        after = lane.sizes.last if lane else None
        if not isinstance(event, k.ContainerExited) or after is None or after.held >= before:
            return  # A repeat, or a report about another's container.
        if not event.asked and event.exit_code != 0:
            self._mark(
                "failed", str(state.seq), f"container {event.generation}/{event.slot} {exit_text(event)}",
                event.message, app=app.id, node=event.node, weight=10,
            )  # fmt: skip

    def _node_event(self, state: State, event: Any, cause: str) -> None:
        node = state.nodes.get(event.node)
        known = self.picture.nodes.get(event.node)
        if node is None:
            if known is not None:
                known.conditions.put(self._time, "left")
                self._mark("node", str(state.seq), "forgotten", getattr(event, "reason", ""), node=known.id, weight=20)
            return
        before = known.conditions.last if known else None
        self._look_at_node(node)
        self._figures.count(state)
        after = self.picture.nodes[node.id].conditions.last
        if isinstance(event, k.NodeJoined) and event.identity != node.identity:
            self._mark("node", str(state.seq), "refused", "another machine claimed the name", node=node.id, weight=20)
        elif isinstance(event, k.NodeJoined) or after != before:
            what = _NODE_WORDS.get(type(event).__name__) or ("drained" if node.draining else "drain ended")
            self._mark("node", str(state.seq), what, getattr(event, "reason", ""), node=node.id, weight=20)
        for app in list(self._known.values()):
            self._look_at(app, cause)

    def _node_fact(self, state: State, fact: Any, position: str) -> None:
        node = state.nodes.get(fact.node)
        if node is None:
            return
        self._look_at_node(node)
        self._figures.count(state)
        silent = self._time - fact.last_heard if getattr(fact, "last_heard", 0) else 0
        text = f"not heard for {length_of_phase(silent)}" if silent > 0 else ""
        self._mark("node", position, _NODE_WORDS[type(fact).__name__], text, node=node.id, weight=30)

    def _app_fact(self, state: State, fact: Any, position: str) -> None:
        lane = self.picture.apps.get(fact.app)
        if isinstance(fact, k.GenerationFailed):
            if lane is not None:
                lane.failures += 1
            counted = "" if fact.counted else ", not counted against its retries"
            what = f"generation {fact.generation} failed{counted}"
            self._mark("failed", position, what, fact.reason, app=fact.app, weight=30)
        elif isinstance(fact, k.MembersLost):
            if lane is not None:
                lane.failures += 1
            counted = "" if fact.counted else ", not counted against its retries"
            what = f"{len(fact.lost)} of its members lost{counted}"
            self._mark("failed", position, what, fact.reason, app=fact.app, weight=20)
        elif isinstance(fact, k.LiveResizeFailed):
            self._mark("failed", position, "live resize failed", fact.reason, app=fact.app, weight=20)
        elif isinstance(fact, k.AppCompleted | k.AppFailed | k.AppCancelled):
            what = type(fact).__name__.removeprefix("App").lower()
            self._mark("ended", position, what, getattr(fact, "reason", ""), app=fact.app, weight=40)

    def _membership(self, state: State, event: k.MembershipChanged) -> None:
        """Mark a live adjustment that this event committed, with its pause."""
        app = state.apps[event.app]
        last = app.history[-1] if app.history else None
        if last is not None and last.live and last.started_at == self._time:
            what = f"resized live: {last.containers_before} -> {last.containers_after}"
            self._mark("live", str(state.seq), what, f"pause {event.pause_s * 1e3:.3g} ms", app=app.id, weight=8)

    def _size_requested(self, state: State, event: k.AppResizeRequested, folded: Folded) -> None:
        if folded.outcome == "applied" and event.app in state.apps:
            what = f"asked for {event.containers}" if event.containers else "asked for n_max again"
            self._mark("asked", str(state.seq), what, event.reason, app=event.app, weight=8)

    def _released(self, fact: k.GenerationReleased) -> None:
        lane = self.picture.apps.get(fact.app)
        partition = lane.partitions.get(fact.generation) if lane else None
        if lane is None or partition is None or partition.released_at != self._time:
            return
        earlier = lane.partitions.get(fact.previous)
        partition.previous = fact.previous
        partition.before = earlier.containers if earlier else partition.before
        partition.prepared_at = partition.decided_at + round(fact.prepare_s * SECOND) if fact.prepare_s else 0
        stops_at = partition.prepared_at or partition.decided_at
        partition.stopped_at = min(stops_at + round(fact.stop_s * SECOND), partition.released_at)
        partition.resume, partition.checkpoint = fact.resume, fact.checkpoint
        partition.lost_steps, partition.killed = fact.lost_steps, fact.killed
        lane.lost_steps += fact.lost_steps

    # --- lanes ----------------------------------------------------------------------------------------------------------

    def _look_at(self, app: App, cause: str) -> None:
        """Update the app's lane to its present state."""
        lane = self.picture.apps.get(app.id)
        over = bool(app.ended) and all(generation.ended for generation in app.generations.values())
        if lane is None:
            if over and app.ended_at < self.picture.start:
                return  # It ended before the picture starts.
            begin = max(app.submitted_at, self.picture.start)
            lane = self.picture.apps[app.id] = AppLane(
                id=app.id, name=app.name, user=app.user, submitted_at=app.submitted_at, n_min=app.n_min, n_max=app.n_max,
                seq=app.seq,
            )  # fmt: skip
            if begin < self._time:
                lane.phases.put(begin, Phase("submitted", 0, "", "", ""))
        if over:
            self._known.pop(app.id, None)
        else:
            self._known[app.id] = app
        lane.n_min, lane.n_max = app.n_min, app.n_max
        code, text = shown_reason(app, self._time)
        was, phase = lane.phases.last, app.phase
        if was is None or (was.phase, was.generation, was.code) != (phase, app.generation, code):
            lane.phases.put(self._time, Phase(phase, app.generation, code, text, cause))
        lane.ended, lane.ended_at, lane.end_reason = app.ended, app.ended_at, app.end_reason
        by_node = self._count(app, lane)
        for name in {**self._on.get(app.id, {}), **by_node}:
            if name in self.picture.nodes:
                held = self.picture.nodes[name].held
                held.setdefault(app.id, Steps()).put(self._time, by_node.get(name, 0))
        self._on[app.id] = by_node
        self._figures.take(app, by_node)
        for number in app.generations:
            self._look_at_partition(app, lane, number)
        for number in list(lane.partitions)[-4:]:
            partition = lane.partitions[number]
            if not partition.released_at and not partition.ended_at and (app.ended or number not in app.generations):
                partition.ended_at = self._time  # Another decision, or the app's end, came before its release.

    def _count(self, app: App, lane: AppLane) -> dict[str, int]:
        """Return the number of containers that may run, by node."""
        current = None if app.ended else app.current
        starting = running = stopping = 0
        nodes: dict[str, int] = {}
        for generation in app.generations.values():
            held = sum(1 for container in generation.all_containers() if container.state != "exited")
            if not generation.released or not held:
                continue
            if generation is current:
                stopping += len(generation.leaving)
                running = generation.running
                starting = held - generation.running - len(generation.leaving)
            else:
                stopping += held
            for container in generation.all_containers():
                if container.state != "exited":
                    nodes[container.node] = nodes.get(container.node, 0) + 1
        lane.sizes.put(self._time, Size(len(current.planned) if current else 0, starting, running, stopping))
        return nodes

    def _look_at_partition(self, app: App, lane: AppLane, number: int) -> None:
        generation = app.generations[number]
        partition = lane.partitions.get(number)
        if partition is None:
            if not generation.containers:
                return
            earlier = [g for n, g in app.generations.items() if n < number and g.released and not g.ended]
            partition = lane.partitions[number] = Partition(
                number=number,
                adjustment=generation.adjustment,
                decision=self._resized.get(generation.decided_seq, str(generation.decided_seq)),
                decided_at=generation.decided_at,
                containers=len(generation.containers),
                nodes=generation.by_node(),
                previous=earlier[-1].number if earlier else 0,
                before=len(earlier[-1].containers) if earlier else 0,
            )
        partition.void, partition.failed = generation.void, generation.failed
        partition.released_at, partition.started_at = generation.released_at, generation.started_at
        if generation.released and generation.ended:
            partition.ended_at = generation.stopped_at
        previous = app.generations.get(partition.previous)
        if previous is not None and previous.ended and not partition.released_at:
            partition.stopped_at = max(previous.stopped_at, partition.decided_at)

    def _look_at_node(self, node: Node) -> None:
        lane = self.picture.nodes.setdefault(node.id, NodeLane(id=node.id, capacity=node.capacity))
        lane.capacity = node.capacity
        condition: str = node.condition
        if condition == "up" and node.draining:
            condition = "maintenance" if node.draining == "maintenance" else "draining"
        elif condition == "up" and node.suspect is not None:
            condition = "suspect"
        lane.conditions.put(self._time, condition)

    # --- decisions and marks --------------------------------------------------------------------------------------------

    def _decision(self, state: State, event: k.Round, fact: k.Resized, position: str) -> None:
        if isfinite(fact.fairness_loss) and isfinite(fact.fairness_budget):  # A broken master can publish anything.
            self.picture.fairness_loss.put(self._time, fact.fairness_loss)
            self.picture.fairness_budget.put(self._time, fact.fairness_budget)
        changes = [found for change in fact.changes if (found := self._change(state, change)) is not None]
        named = find_apps(self.picture, self._wanted)
        changed = {change.app for change in changes}
        reasons = sorted(fact.reasons.items(), key=lambda one: (one[0] not in named, one[0] not in changed, one[0]))
        self.picture.decisions.append(
            Decision(
                time=self._time,
                position=position,
                epoch=event.epoch,
                policy=fact.policy,
                policy_version=fact.policy_version,
                solver=fact.solver,
                status=fact.status,
                trigger=fact.trigger,
                utilization=fact.utilization,
                bound=fact.bound,
                fairness_loss=fact.fairness_loss,
                fairness_budget=fact.fairness_budget,
                excess=fact.excess,
                overhead=fact.overhead,
                overhead_budget=fact.overhead_budget,
                change_cost=fact.change_cost,
                short=len(fact.shortage),
                changes=sorted(changes, key=lambda one: one.app not in named)[:CHANGES],
                all_changes=len(changes),
                reasons=[
                    Reason(app, state.apps[app].name if app in state.apps else app, why.code, why.text)
                    for app, why in reasons[:REASONS]
                ],
                all_reasons=len(reasons),
            )
        )

    def _change(self, state: State, change: k.Resize) -> Change | None:
        """Return the change, or None if the fold did not apply it."""
        app = state.apps.get(change.app)
        generation = app.generations.get(change.to_generation) if app else None
        if app is None:
            return None
        if change.adjustment == "live":
            planned = generation.change if generation is not None else None
            if planned is None or planned.decided_seq != state.seq:
                return None
        elif generation is not None and generation.decided_seq != state.seq:
            return None
        lane = self.picture.apps.get(app.id)
        before = lane.sizes.last.decided if lane and lane.sizes.last else 0
        void = generation is not None and generation.void
        return Change(app.id, app.name, before, len(change.placement), change.adjustment, change.to_generation, void)

    def _mark(
        self, kind: str, position: str, what: str, text: str, *, app: str = "", node: str = "", weight: int = 1
    ) -> None:
        self.picture.marks.append(Mark(self._time, position, kind, what, text[:400], app=app, node=node, weight=weight))
