"""The story of one node: when it came and left, decisions about it, starts and ends there, and how full it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.offers import trouble_with_fitness
from events import kinds as k
from events import subjects
from events.quantities import SECOND
from replay.story import story_words
from replay.story.chapters import Cause, Chapter, Exit
from replay.story.settings_causes import blaming, killed_because, lease_ended_because, lost_because, settings_changed
from replay.story.surroundings import Surroundings, name_in
from replay.words import containers, moment, span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dorm.core.folded import Folded
    from dorm.core.state import Node, State
    from events.log.records import Record

COLUMNS = 48
"""Columns of the course of use; when they are full, each pair is merged into one column of twice the length."""
FAILURES_TOLD = 3
"""Failed containers of one generation that are reported singly."""
_PROGRESS = (k.AppProgressed, k.AppCheckpointed)
_STOPS = (k.AppCancelled, k.AppFailed, k.GenerationFailed)
"""Kinds after which the agents stop the rest of a generation."""


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """How full a node was while it was known: parts of its capacity held by containers that ran or may have run."""

    resource: str
    mean: float
    peak: float
    column_s: float
    """Length of each column of the course."""
    course: list[float]
    """Mean part in use by columns of time, from when the node joined."""


class NodeTotals(msgspec.Struct, frozen=True, kw_only=True):
    """A node's time in numbers, since it first joined.  Durations are seconds; a drained node also counts as up."""

    up_s: float
    drained_s: float
    lost_s: float
    left_s: float
    apps: int
    """Apps that had containers there."""
    started: int
    failed: int
    """Containers that ended by themselves with a failure."""
    running: int
    """Containers that run there now, or may."""
    use: list[Use]


class Course:
    """The part of a resource in use over time, in bounded memory."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.width = SECOND // 10
        self.columns = [0.0]
        """Sums of part times ns, by column."""
        self.peak = 0.0
        self._part = 0.0
        self._at = start

    def set(self, time: int, part: float) -> None:
        """Set the part in use from this time on."""
        self._fill(time)
        self._part, self.peak = part, max(self.peak, part)

    def _fill(self, time: int) -> None:
        while time - self.start > COLUMNS * self.width:
            pairs = zip(self.columns[::2], [*self.columns[1::2], 0.0], strict=False)
            self.columns, self.width = [sum(pair) for pair in pairs], 2 * self.width
        while self._at < time:
            column = (self._at - self.start) // self.width
            until = min(time, self.start + (column + 1) * self.width)
            self.columns += [0.0] * (column + 1 - len(self.columns))
            self.columns[column] += self._part * (until - self._at)
            self._at = until

    def use(self, resource: str, time: int) -> Use:
        """Return the use until now; this does not affect later results."""
        self._fill(time)
        length = max(1, time - self.start)
        sizes = [min(self.width, length - index * self.width) for index in range(len(self.columns))]
        return Use(
            resource=resource,
            mean=sum(self.columns) / length,
            peak=self.peak,
            column_s=self.width / SECOND,
            course=[round(total / size, 4) for total, size in zip(self.columns, sizes, strict=True) if size > 0],
        )


class NodeTeller:
    """Follows a fold for one node (`see` is the `seen` of `replay.travel`).  Keeps its story, and its running
    containers."""

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted
        self.around = Surroundings()
        self._chapters: list[Chapter] = []
        self._ignored = self._void = 0
        self._running: dict[tuple[str, int, int], dict[str, int]] = {}
        """Demands of containers that run here, or may, by app, generation and slot."""
        self._moved = False
        """Whether the containers or the node's capacity changed since use was last recorded."""
        self._to_start: dict[tuple[str, int], int] = {}
        self._failures: dict[tuple[str, int], int] = {}
        self._decided: dict[str, tuple[int, Cause]] = {}
        """Decisions by app: the generation last decided that concerns this node, and the chapter; for an app whose
        containers are stopped for good, the next generation."""
        self._courses: dict[str, Course] = {}
        self._spent = {"up": 0, "drained": 0, "lost": 0, "left": 0}
        self._since = 0
        self._doing: list[str] = []
        self._before: Node | None = None
        self._trouble: Cause | None = None
        self._suspected: Cause | None = None
        """Chapter of when it became suspect."""
        self._apps: dict[str, None] = {}
        self._started = self._failed = 0

    @property
    def known(self) -> bool:
        return bool(self._chapters)

    def story(self) -> list[Chapter]:
        """Return all chapters so far."""
        return list(self._chapters)

    def used(self) -> dict[str, int]:
        """Return how much of each resource the containers hold that run here, or may."""
        used: dict[str, int] = {}
        for demand in self._running.values():
            for name, amount in demand.items():
                used[name] = used.get(name, 0) + amount
        return used

    def totals(self, state: State) -> NodeTotals:
        spent = dict(self._spent)
        for doing in self._doing:
            spent[doing] += state.time - self._since
        return NodeTotals(
            **{f"{name}_s": time / SECOND for name, time in spent.items()},
            apps=len(self._apps),
            started=self._started,
            failed=self._failed,
            running=len(self._running),
            use=[course.use(name, state.time) for name, course in sorted(self._courses.items())],
        )

    # --- following ------------------------------------------------------------------------------------------------------

    def begin(self, state: State) -> None:
        """Start from a state instead of the log's first record; a node that is in it is adopted."""
        self.around.begin(state)
        node = state.nodes.get(self.wanted)
        if node is None:
            return
        for app in state.apps.values():
            for generation in app.generations.values():
                self._hold(app.id, generation.number, app.demand, state)
        self._moved = True
        condition = "drained" if node.condition == "up" and node.draining else node.condition
        self._account(state)
        self._tell(state, str(state.seq), "known", f"already {condition} where this reading of the log starts")

    def see(self, state: State, record: Record, folded: Folded) -> None:
        """Follow one record after it was folded."""
        event = folded.event
        if isinstance(event, _PROGRESS):
            return
        if isinstance(event, k.Round):
            if folded.outcome == "void":
                return
            for index, fact in enumerate(event.events):
                self._fact(state, event, index, fact)
                self.around.fact(state, folded, index)
            if len(self._decided) > 2 * len(state.apps) + 16:
                self._forget(state)
        elif folded.outcome == "forbidden":
            pass  # It changed nothing, and the master reports it.
        elif folded.outcome != "ignored":
            # A refused request may still have been applied in part, and is part of the story.
            here = getattr(event, "node", "") == self.wanted
            if isinstance(event, k.PolicyChanged) and self.known and (text := settings_changed(state, event)):
                self._tell(state, str(state.seq), "settings", text)
            handler = _HANDLERS.get(type(event)) if here else None
            if handler is not None:
                handler(self, state, event)
            self.around.record(state, folded)
            if not here:
                return
        self._account(state)

    def _forget(self, state: State) -> None:
        self._decided = {app: cause for app, cause in self._decided.items() if app in state.apps}
        self._failures = {key: count for key, count in self._failures.items() if key[0] in state.apps}

    def _account(self, state: State) -> None:
        node = state.nodes.get(self.wanted)
        if node is None and not self._doing:
            return
        if node is None:  # It was forgotten.
            for what in self._doing:
                self._spent[what] += state.time - self._since
            self._doing = []
            return
        doing = [node.condition, *(["drained"] if node.condition == "up" and node.draining else [])]
        if doing != self._doing:
            for what in self._doing:
                self._spent[what] += state.time - self._since
            self._doing, self._since = doing, state.time
        if self._before is not node:
            self._before = msgspec.structs.replace(node)
        if not self._moved:
            return
        self._moved = False
        used = self.used()
        for name, capacity in node.capacity.items():
            course = self._courses.get(name)
            if course is None:
                course = self._courses[name] = Course(state.time)
            course.set(state.time, used.get(name, 0) / capacity if capacity else 0.0)

    def _tell(
        self, state: State, position: str, what: str, text: str, causes: Sequence[Cause | None] = (), **fields: Any
    ) -> Cause:
        known = [cause for cause in causes if cause is not None]
        self._chapters.append(Chapter(position=position, time=state.time, what=what, text=text, causes=known, **fields))
        return Cause(position, text.split(";")[0])

    # --- facts of its agent and requests of operators -------------------------------------------------------------------

    def _joined(self, state: State, event: k.NodeJoined) -> None:
        node = state.nodes[self.wanted]
        if node.identity != event.identity:
            text = f"another machine at {event.address} claimed this name and was refused: it waits until nothing runs here"
            self._tell(state, str(state.seq), "refused", text)
            return
        self._moved = True
        has = story_words.amounts(node.capacity)
        labels = ", ".join(f"{name}={value}" for name, value in node.labels.items())
        why = trouble_with_fitness(node).partition(": ")[2]
        text = f"with {has}" + (f", labels {labels}" if labels else "") + f", runtime {node.runtime}"
        text += f", and takes nothing new: {why}" if why else ""
        before = self._before
        if before is None:
            self._tell(state, str(state.seq), "joined", f"joined {text}")
            return
        same = before.condition == "up" and node.process and before.process == node.process
        if same and before.unfit != node.unfit:
            text = f"takes nothing new: {why}; what runs there stays" if why else "takes containers again"
            self._trouble = self._tell(state, str(state.seq), "unfit" if why else "fit", text, [self._trouble])
            return
        back = "announced again" if same else "its agent is back"
        again = f"{back if before.capacity == node.capacity else 'joined again'}, {text}"
        if before.capacity != node.capacity:
            had = story_words.amounts(before.capacity)
            again += f" (before: {had})"
        trouble = self._trouble if before.condition != "up" else None
        self._tell(state, str(state.seq), "rejoined", again, [trouble])

    def _drained(self, state: State, event: k.NodeDrainRequested) -> None:
        what = "drained" if event.drain else "undrained"
        cause = self._tell(state, str(state.seq), what, story_words.drain(event), by=event.by)
        self._trouble = cause

    def _forgotten(self, state: State, event: k.NodeForgetRequested) -> None:
        self._trouble = self._tell(state, str(state.seq), "forgotten", story_words.forgotten(event), by=event.by)

    def _trust_requested(self, state: State, event: k.NodeTrustRequested) -> None:
        self._tell(state, str(state.seq), "trusted", story_words.trust_requested(event), [self._suspected], by=event.by)
        self._suspected = None

    def _left(self, state: State, event: k.NodeLeft) -> None:
        ended = self._release_all()
        text = "left: its agent shut down cleanly" + (f"; {containers(ended)} ended there" if ended else "")
        self._trouble = self._tell(state, str(state.seq), "left", text)

    def _container_started(self, state: State, event: k.ContainerStarted) -> None:
        key = (event.app, event.generation)
        self._started += 1
        self._apps[event.app] = None
        left = self._to_start.get(key, 1) - 1
        self._to_start[key] = left
        if left > 0:
            return
        del self._to_start[key]
        count = sum(held[:2] == key for held in self._running)
        text = f"{containers(count)} of {name_in(state, event.app)} (generation {event.generation}) run"
        number, cause = self._decided.get(event.app, (0, None))
        causes = [cause] if number == event.generation else []
        self._tell(state, str(state.seq), "started", text, causes, app=event.app)

    def _container_exited(self, state: State, event: k.ContainerExited) -> None:
        key = (event.app, event.generation)
        self._running.pop((*key, event.slot), None)
        self._moved = True
        self._apps[event.app] = None
        ended = Exit(
            app=event.app,
            generation=event.generation,
            slot=event.slot,
            node=event.node,
            exit_code=event.exit_code,
            reason=event.reason,
            message=event.message,
        )
        name = name_in(state, event.app)
        if (changed := killed_because(state, event)) is not None:
            text = blaming(f"{name} (generation {event.generation}): {story_words.exited(ended)}", changed)
            self._tell(state, str(state.seq), "container_killed", text, [changed], app=event.app, exit=ended)
        if not event.asked and event.exit_code != 0:
            self._failed += 1
            count = self._failures[key] = self._failures.get(key, 0) + 1
            if count <= FAILURES_TOLD:
                text = f"{name} (generation {event.generation}): {story_words.exited(ended)}"
                self._tell(state, str(state.seq), "container_failed", text, app=event.app, exit=ended)
        if not any(held[:2] == key for held in self._running):
            self._to_start.pop(key, None)
            failures = self._failures.pop(key, 0)
            how = f", {failures} of which failed" if failures else ""
            text = f"all containers of {name} (generation {event.generation}) have ended{how}"
            number, cause = self._decided.get(event.app, (0, None))
            causes = [cause] if number > event.generation else []
            self._tell(state, str(state.seq), "ended", text, causes, app=event.app)

    # --- facts of the master --------------------------------------------------------------------------------------------

    def _fact(self, state: State, event: k.Round, index: int, fact: Any) -> None:
        position = f"{state.seq}.{index}"
        if isinstance(fact, k.Resized):
            self._resized(state, event, position, fact)
        elif isinstance(fact, k.GenerationReleased):
            app = state.apps.get(fact.app)
            if app is not None and fact.generation in app.generations:
                self._hold(fact.app, fact.generation, app.demand, state)
        elif isinstance(fact, _STOPS):
            if any(held[0] == fact.app for held in self._running):
                how = "was cancelled" if isinstance(fact, k.AppCancelled) else "failed"
                self._decided[fact.app] = fact.generation + 1, Cause(position, f"{name_in(state, fact.app)} {how}")
        elif isinstance(fact, k.RecordsRefused):
            for record in fact.records:
                if record.about == self.wanted or record.who == subjects.token(self.wanted):
                    cause = Cause(str(record.seq), f"{record.who} published {record.of}")
                    self._tell(
                        state, position, "refused", f"{record.of} by {record.who} was refused: {record.reason}", [cause]
                    )
        elif getattr(fact, "node", "") == self.wanted and self.wanted in state.nodes:
            if isinstance(fact, k.NodeLost):
                text = f"lost: not heard since {moment(fact.last_heard)}; whether its containers run is unknown"
                changed = lost_because(state, fact)
                self._trouble = self._tell(state, position, "lost", blaming(text, changed), [changed])
            elif isinstance(fact, k.NodeSuspected):
                self._suspected = self._tell(state, position, "suspected", story_words.suspected(state, fact))
            elif isinstance(fact, k.NodeTrusted):
                self._tell(state, position, "trusted", story_words.trusted(fact), [self._suspected])
                self._suspected = None
            elif isinstance(fact, k.NodeRecovered):
                after = f" after {span((state.time - self._since) / SECOND)}" if self._doing == ["lost"] else ""
                self._tell(state, position, "recovered", f"heard again{after}", [self._trouble])
            elif isinstance(fact, k.NodeLeaseEnded):
                ended = self._release_all()
                text = f"its lease ended, so its agent has stopped what ran there: {containers(ended)}"
                changed = lease_ended_because(state, fact)
                self._tell(state, position, "lease_ended", blaming(text, changed), [self._trouble, changed])

    def _hold(self, app: str, generation: int, demand: dict[str, int], state: State) -> None:
        generation_now = state.apps[app].generations[generation]
        if not generation_now.released:
            return
        here = [c for c in generation_now.containers.values() if c.node == self.wanted and c.state != "exited"]
        self._moved = self._moved or bool(here)
        for container in here:
            self._running[app, generation, container.slot] = demand
        waiting = sum(container.state == "desired" for container in here)
        if waiting:
            self._to_start[app, generation] = waiting

    def _release_all(self) -> int:
        ended = len(self._running)
        self._running, self._to_start, self._moved = {}, {}, True
        return ended

    def _resized(self, state: State, event: k.Round, position: str, fact: k.Resized) -> None:
        """Report which apps get, give up and restart containers here, in one chapter per decision."""
        parts: list[str] = []
        changed: dict[str, int] = {}
        after = self.around.after(state, fact)
        for change in sorted(fact.changes, key=lambda change: change.app):
            before, now = self.around.places.get(change.app, {}), after.get(change.app, {})
            had, has = before.get(self.wanted, 0), now.get(self.wanted, 0)
            if change.app not in after or not (had or has):
                continue
            changed[change.app] = change.to_generation
            way = f"gets {has - had}" if has > had else f"gives up {had - has}" if had > has else f"restarts its {has}"
            parts.append(f"{name_in(state, change.app)} {way}")
        if parts:
            causes = self.around.behind(state, event, fact)
            text = "decided: " + ", ".join(story_words.names(parts, 8))
            cause = self._tell(state, position, "decided", text, causes)
            self._decided.update((app, (generation, cause)) for app, generation in changed.items())


_HANDLERS: dict[type, Callable[[NodeTeller, State, Any], None]] = {
    k.NodeJoined: NodeTeller._joined,
    k.NodeLeft: NodeTeller._left,
    k.NodeDrainRequested: NodeTeller._drained,
    k.NodeForgetRequested: NodeTeller._forgotten,
    k.NodeTrustRequested: NodeTeller._trust_requested,
    k.ContainerStarted: NodeTeller._container_started,
    k.ContainerExited: NodeTeller._container_exited,
}
