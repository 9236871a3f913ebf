"""Adds up what apps were given, used and lost, as an observer of a fold: `see` after each record, `close` at the end.

An `Account` is of one app: which nodes keep room for it, and since when an adjustment keeps it from working.  The `Ledger`
sums over accounts, by user, app, node and resource.  All amounts are integers, container-nanoseconds by node, and become
amounts of resources only when they are summed up, so sums over parts equal the whole.

An app is looked at only when a record may have changed it (`dorm.core.folded`).  Most records of a log report progress, and
cost nothing here.  Memory grows with the apps that hold room now, and with the rows of the answer, not with the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dorm.core.query.views import room_held
from events import kinds as k
from events.quantities import CPU, MEMORY, SECOND

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dorm.core.app import AdjustmentRecord
    from dorm.core.folded import Folded
    from dorm.core.generation import Generation
    from dorm.core.state import App, State
    from events.log.records import Record


# --- what one app holds -----------------------------------------------------------------------------------------------

NEVER = 2**63 - 1


class Held:
    """Container-nanoseconds on one node."""

    __slots__ = ("given", "paused", "redone")

    def __init__(self) -> None:
        self.given = self.paused = self.redone = 0


class Account:
    """One app that holds room, or may soon."""

    __slots__ = ("_live", "_redone", "_resumed", "app", "awaits", "demand", "held", "nodes", "paused_from", "since")

    def __init__(self, app: App, now: int) -> None:
        self.app = app
        self.demand = dict(app.demand)
        """Resources of one container."""
        self.since = now
        self.held: dict[str, int] = {}
        """Containers by node that have room, from `since` on."""
        self.paused_from = NEVER
        """From when on (log time) an adjustment keeps it from working."""
        self.nodes: dict[str, Held] = {}
        """The sum since the last `take`."""
        self.awaits = False
        """Whether its first report after an adjustment would end the pause."""
        self._live = self._redone = self._resumed = app.history[-1] if app.history else None
        """The last adjustment whose pause, repeated work and first report are added up."""

    def run_to(self, now: int) -> None:
        """Add up its holding until now."""
        time = now - self.since
        if time <= 0:
            return
        paused = min(time, max(0, now - self.paused_from))
        for node, count in self.held.items():
            sums = self._of(node)
            sums.given += count * time
            sums.paused += count * paused
        self.since = now

    def look(self, app: App, now: int) -> None:
        """Take over its holding from now on; `run_to(now)` was called."""
        self.app = app
        self.held = {node: count for node, count in room_held(app).items() if count}
        self.paused_from = _paused_from(app, now)
        last = app.history[-1] if app.history else None
        self.awaits = last is not None and last is not self._resumed and not last.live and bool(last.started_at)

    def reported(self) -> None:
        """Add the pause between the start of all containers and the first work that they report (`dorm.core.costs`)."""
        last = self.app.history[-1]
        if not last.resumed_at:
            return
        self.awaits, self._resumed = False, last
        if last.steps_per_s:
            done = max(0, last.resumed_step - (last.checkpoint or 0))
            pace = last.steps_per_s * last.containers_after / max(1, last.containers_before)
            pause = last.resumed_at - int(done / pace * SECOND) - last.started_at
            self._spread(max(0, pause) * last.containers_after, paused=True)

    def redone(self, last: AdjustmentRecord) -> None:
        """Add the work that an adjustment has repeated, once."""
        if last is not self._redone and last.steps_per_s and last.lost_steps:
            self._redone = last
            self._spread(int(last.lost_steps / last.steps_per_s * SECOND) * last.containers_before, paused=False)

    def resized_live(self, last: AdjustmentRecord) -> None:
        """Add the pause that the leader of a live app reported, once."""
        if last is not self._live and last.live:
            self._live = last
            self._spread(int(last.pause_s * SECOND) * last.containers_after, paused=True)

    def take(self) -> dict[str, Held]:
        """Return the sums by node, and begin again."""
        taken, self.nodes = self.nodes, {}
        return taken

    def _of(self, node: str) -> Held:
        found = self.nodes.get(node)
        if found is None:
            found = self.nodes[node] = Held()
        return found

    def _spread(self, amount: int, *, paused: bool) -> None:
        """Divide container-nanoseconds among the nodes that it is on, so that the parts add up exactly."""
        left, containers = amount, sum(self.held.values())
        for node, count in self.held.items():
            part = left * count // containers
            left, containers = left - part, containers - count
            sums = self._of(node)
            if paused:
                sums.paused += part
            else:
                sums.redone += part


def _paused_from(app: App, now: int) -> int:
    """Return from when an adjustment pauses the app, which may be in the future; NEVER if none does."""
    current = app.current
    if app.ended or current is None or current.adjustment != "restart" or current.started_at:
        return NEVER
    if current.prepare_until and _works(app, current):
        return current.prepared_at or current.prepare_until
    return now


def _works(app: App, current: Generation) -> bool:
    """Return whether the generation before may still work."""
    return any(number != current.number and not generation.ended for number, generation in app.generations.items())


# --- sums over accounts -----------------------------------------------------------------------------------------------

GROUPS = ("user", "app", "node")
"""The keys by which usage can be summed; each resource always has its own sums."""

Key = tuple[str, str, str]
"""User, app and node; "" for keys that were not requested."""

_REPORTS = (k.AppProgressed, k.AppCheckpointed)


class Sum:
    """Of one resource: integers in its base unit times nanoseconds."""

    __slots__ = ("capacity", "container", "given", "known", "paused", "redone", "used", "wasted")

    def __init__(self) -> None:
        self.container = self.given = self.known = self.used = self.wasted = self.paused = self.redone = (
            self.capacity
        ) = 0


class Wanted(NamedTuple):
    """Only what these users', these apps' (by name or id) containers hold on these nodes; empty for all."""

    users: frozenset[str] = frozenset()
    apps: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()

    def app(self, app: App) -> bool:
        if self.users and app.tenant not in self.users:
            return False
        return not self.apps or app.id in self.apps or app.name in self.apps

    def node(self, node: str) -> bool:
        return not self.nodes or node in self.nodes


class Period:
    """The sums over a part of the span, by key and resource."""

    def __init__(self, begin: int) -> None:
        self.begin = self.end = begin
        """Log times (UTC ns)."""
        self.sums: dict[tuple[Key, str], Sum] = {}

    def of(self, key: Key, resource: str) -> Sum:
        found = self.sums.get((key, resource))
        if found is None:
            found = self.sums[key, resource] = Sum()
        return found


class Ledger:
    """Observes a fold from a state on."""

    def __init__(
        self,
        state: State,
        start: int = 0,
        *,
        by: Sequence[str] = ("user",),
        wanted: Wanted | None = None,
        every: int = 0,
    ) -> None:
        """`start` is the log time from which to count, if that is after the state's.  `by` names some of `GROUPS`.  With
        `every` (ns) each period of that length has sums of its own."""
        self._by = tuple(name in by for name in GROUPS)
        self._wanted = wanted or Wanted()
        self._every = every
        self._time = max(state.time, start) if state.seq else 0
        self.periods = [Period(self._time)]
        self.names: dict[str, str] = {}
        """The names of the apps that have sums, by id."""
        self.known_users: dict[str, None] = {}
        self.known_apps: dict[str, None] = {}
        self.known_nodes: dict[str, None] = dict.fromkeys(state.nodes)
        """Users, apps and nodes that were seen, to suggest names."""
        self._open: dict[str, Account] = {}
        self._capacity: dict[str, dict[str, int]] = {}
        """By node that may hold containers."""
        self._since = self._time
        """Since when the capacities are counted."""
        for app in state.apps.values():
            self._look(app)
        self._look_at_nodes(state)

    # --- following ------------------------------------------------------------------------------------------------------

    def see(self, state: State, record: Record, folded: Folded) -> None:
        """Follow one record after it was folded."""
        event = folded.event
        if not self._time:
            self._begin(state.time)
        if state.time > self._time:
            self._advance(state.time)
        if isinstance(event, _REPORTS):
            account = self._open.get(event.app)
            if account is not None and account.awaits:
                account.reported()
            return
        if not folded.touched:
            return
        if isinstance(event, k.ContainerExited):
            self._exited(state, event)
        if folded.everything:
            self._all(state)
        for name in folded.apps:
            self._look_by_id(state, name)
        if isinstance(event, k.MembershipChanged):
            self._resized_live(state, event)
        elif isinstance(event, k.Round):
            for fact in event.events:
                if isinstance(fact, k.GenerationReleased):
                    self._released(state, fact)

    def running(self, state: State, uses: Mapping[tuple[str, int, int], k.ContainerUse]) -> None:
        """Add what containers that run at the end have used until now, by their nodes' last heartbeats."""
        for app in state.apps.values():
            for generation in app.generations.values():
                for container in generation.all_containers():
                    use = uses.get((app.id, generation.number, container.slot))
                    if use is not None and container.state == "running" and self._time > container.started_at:
                        self._used(app, container.node, container.started_at, use.cpu_s, use.memory)

    def close(self, end: int) -> None:
        """End the span at this log time, not before the last record's."""
        if self._time:
            self._advance(max(end, self._time))
            self._settle()

    def _begin(self, time: int) -> None:
        self._time = self._since = time
        self.periods = [Period(time)]

    def _advance(self, time: int) -> None:
        """Move on to a later log time, and end the periods before it."""
        while self._every and time >= self.periods[-1].begin + self._every:
            self._time = self.periods[-1].begin + self._every
            self._settle()
            self.periods.append(Period(self._time))
        self._time = time

    def _settle(self) -> None:
        """Put everything until now into the sums of the present period."""
        for account in self._open.values():
            account.run_to(self._time)
            self._put(account)
        self._count_capacity()
        self.periods[-1].end = self._time

    # --- what a record touches ------------------------------------------------------------------------------------------

    def _released(self, state: State, fact: k.GenerationReleased) -> None:
        account = self._open.get(fact.app)
        last = account.app.history[-1] if account is not None and account.app.history else None
        if account is None or last is None or last.to_generation != fact.generation:
            return
        if last.released_at == state.time:
            account.redone(last)

    def _exited(self, state: State, event: k.ContainerExited) -> None:
        app = state.apps.get(event.app)
        if app is not None and event.usage is not None:
            began = max(self._time - int(event.usage.over_s * SECOND), _started_at(app, event))
            self._used(app, event.node, began, event.usage.cpu_s, event.usage.memory)

    def _resized_live(self, state: State, event: k.MembershipChanged) -> None:
        app, account = state.apps.get(event.app), self._open.get(event.app)
        last = app.history[-1] if app is not None and app.history else None
        if account is not None and last is not None and last.started_at == state.time:
            account.resized_live(last)

    def _all(self, state: State) -> None:
        for name in list(self._open):
            self._look_by_id(state, name)
        self._look_at_nodes(state)

    def _look_by_id(self, state: State, name: str) -> None:
        app = state.apps.get(name)
        if app is not None:
            self._look(app)
        elif name in self._open:  # It has ended, and its retention in the state is over.
            self._close(self._open[name])

    def _look(self, app: App) -> None:
        account = self._open.get(app.id)
        if account is None:
            if app.ended and all(generation.ended for generation in app.generations.values()):
                return
            account = self._open[app.id] = Account(app, self._time)
        account.run_to(self._time)
        if account.demand != app.demand:  # Its spec was edited: everything held until now had the earlier demand.
            self._put(account)
            account.demand = dict(app.demand)
        account.look(app, self._time)
        if app.ended and not account.held:
            self._close(account)

    def _close(self, account: Account) -> None:
        account.run_to(self._time)
        self._put(account)
        del self._open[account.app.id]

    def _look_at_nodes(self, state: State) -> None:
        self._count_capacity()
        self._capacity = {node.id: node.capacity for node in state.nodes.values() if not node.gone}
        self.known_nodes.update(dict.fromkeys(self._capacity))

    # --- sums -----------------------------------------------------------------------------------------------------------

    def _put(self, account: Account) -> None:
        app = account.app
        for node, held in account.take().items():
            self._note(app)
            if self._wanted.app(app) and self._wanted.node(node):
                self._add(app, node, held, account.demand)

    def _note(self, app: App) -> None:
        self.known_users[app.tenant] = None
        if self._wanted.apps:
            self.known_apps[app.name] = None
            if app.id in self._wanted.apps:
                self.known_apps[app.id] = None

    def _add(self, app: App, node: str, held: Held, demand: dict[str, int]) -> None:
        key = self._key(app, node)
        period = self.periods[-1]
        for resource, amount in demand.items():
            into = period.of(key, resource)
            into.container += held.given
            into.given += held.given * amount
            into.paused += held.paused * amount
            into.redone += held.redone * amount

    def _key(self, app: App, node: str) -> Key:
        user, one, place = self._by
        if one:
            self.names[app.id] = app.name
        return (app.tenant if user else "", app.id if one else "", node if place else "")

    def _used(self, app: App, node: str, begin: int, cpu_s: float, memory: int) -> None:
        """Add a container's usage from `begin` until now, evenly over that time."""
        lived = self._time - begin
        if lived <= 0 or not (self._wanted.app(app) and self._wanted.node(node)):
            return
        key = self._key(app, node)
        for period in reversed(self.periods):
            until = self._time if period is self.periods[-1] else period.end
            time = until - max(begin, period.begin)
            if time > 0:
                self._add_used(app, period, key, CPU, time, int(cpu_s * 1000 * time / lived * SECOND))
                self._add_used(app, period, key, MEMORY, time, memory * time)
            if period.begin <= begin:
                break

    def _add_used(self, app: App, period: Period, key: Key, resource: str, time: int, used: int) -> None:
        if resource in app.demand:
            into, held = period.of(key, resource), app.demand[resource] * time
            into.known += held
            into.used += used
            into.wasted += max(0, held - used)

    def _count_capacity(self) -> None:
        """Add the capacity until now; it is compared with sums that are of all users and apps."""
        time, self._since = self._time - self._since, self._time
        if time <= 0 or self._by[0] or self._by[1] or self._wanted.users or self._wanted.apps:
            return
        for node, capacity in self._capacity.items():
            if self._wanted.node(node):
                for resource, amount in capacity.items():
                    self.periods[-1].of(("", "", node if self._by[2] else ""), resource).capacity += amount * time


def _started_at(app: App, event: k.ContainerExited) -> int:
    """Return when a container that has just ended had started; for a container that left a live app, when the app was
    accepted."""
    generation = app.generations.get(event.generation)
    container = generation.find(event.slot) if generation is not None else None
    return container.started_at if container is not None and container.started_at else app.accepted_at
