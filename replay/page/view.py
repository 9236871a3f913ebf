"""The dashboard's picture of one moment.

    View
    ├── ClusterView    capacity and use by kind of resource, the figures of the last decision with their budgets
    ├── NodeView       capacity, use, condition, and how many containers of which app
    ├── AppView        phase, containers, share against fair share, the reason why it waits or has less than n_max
    ├── WorkView       what an app has reported: step, loss, samples per second; what is left, what adjustments cost
    └── DecisionView   the last decision: what it changed, and every reason that it gave, up to a bound

Everything follows from the state and the record of the last decision, so the past looks exactly as the present did.  Apps that
ended more than `ENDED_KEPT_S` seconds ago (log time), and nodes that have left and hold nothing, are left out: a view's
size does not grow with history.  Times are RFC 3339, quantities integers in base units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import msgspec

from dorm.core.asking import problem_of
from dorm.core.costs import cost_s, is_live
from dorm.core.delays import delay_without_time, delays_of
from dorm.core.faults import with_remedy
from dorm.core.gates import reason_of
from dorm.core.generation import Pace
from dorm.core.offers import trouble_with_fitness
from dorm.core.progress import shown as reported
from dorm.core.query.standing import standings
from dorm.core.query.views import paused_text
from dorm.core.shared_folder import trouble
from events.cloudevents import rfc3339
from events.kinds import EVENTS, List, Resized, Waiting
from events.positions import Logged, logged
from events.quantities import SECOND
from replay.page.colors import colors_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dorm.core.progress import Newest
    from dorm.core.query.standing import Standing
    from dorm.core.state import App, Generation, Node, State
    from events.kinds import Resize
    from events.log.records import Record

ENDED_KEPT_S = 600
"""Seconds of log time for which an ended app stays in views."""
MOST_ENDED = 200
"""Most ended apps in a view: the latest."""
_LONGEST_S = 1e9
"""The longest time to go that a view states."""
MOST_CHANGES = 400
MOST_REASONS = 2000
"""Most changes and reasons of a decision in a view; the totals are there too."""


class Held(msgspec.Struct, frozen=True, array_like=True):
    """Containers of one app on one node.  `count` is the room that is kept for them."""

    app: int | str
    """Index of the app in a view, its id in changes."""
    count: int
    starting: int = 0
    """Number of those that are due to run and do not run yet."""
    stopping: int = 0
    """Number of those that still run although they should not."""


class NodeView(msgspec.Struct, frozen=True):
    """A node."""

    id: str
    labels: dict[str, str]
    capacity: dict[str, int]
    used: dict[str, int]
    """The present or future usage of its containers."""
    state: str
    """`up`, `draining`, `maintenance`, `unmounted` (its checkpoint folder is not the cluster's), `unfit` (its agent says
    why it takes nothing new), `suspect` (apps failed there, so it takes nothing new), `lost` or `left`."""
    containers: list[Held]
    address: str = ""
    runtime: str = ""
    note: str = ""
    """Reason why it gets no containers although it is up, and what to do."""


class AppView(msgspec.Struct, frozen=True, omit_defaults=True):
    """An app."""

    id: str
    name: str
    user: str
    phase: str
    containers: int
    """Number that it will have."""
    running: int
    n_min: int
    n_max: int
    weight: float
    share: float
    """Dominant share of the cluster, 0 to 1."""
    fair_share: float
    """The share that weighted DRF would give it."""
    dominant: str
    """The kind of resource of its share."""
    demand: dict[str, int]
    """Demand of one container."""
    engine: str
    generation: int
    since: str | None
    """Time since which its phase holds; None if the log does not say."""
    submitted_at: str
    reason: Waiting | None
    """Reason why it waits, or has less than n_max."""
    live: bool
    """Whether it is resized live: its members train on."""
    adjustments: int
    failures: int
    end_reason: str = ""
    color: int = 0
    """Its color and pattern in pictures (`replay.page.colors`)."""
    steps: int | None = None
    """How many it has to do; None if its spec does not say."""
    labels: dict[str, str] = {}
    sweep: str = ""
    trouble: str = ""
    """What a node tries for it again and again without success; "" for nothing."""


class WorkView(msgspec.Struct, frozen=True, array_like=True):
    """What an app has done, as far as it says so.  It changes with every report, so it is apart from the app's entry."""

    app: str
    step: int
    loss: float | None
    loss_is: str
    """`nan`, `inf` or `-inf` if the loss is not a finite number."""
    samples_per_s: float | None
    at: int
    """When it reported last in its present generation (ms since 1970), 0 if it has not."""
    left_s: float | None
    """For how long it works on at its present pace; None if it does not say its steps, or has not shown a pace."""
    cost_s: float
    """Seconds of its work that its latest adjustments cost together: pauses and repeated steps."""
    lost_steps: int
    doubt: bool
    """Whether its last checkpoint may be incomplete."""


class ClusterView(msgspec.Struct, frozen=True):
    """The cluster as a whole."""

    kinds: list[str]
    capacity: dict[str, int]
    """Capacity of nodes that are usable or still hold containers."""
    used: dict[str, int]
    """Part of it that the apps' partitions use."""
    utilization: float
    """U = Σ used / capacity over the kinds, between 0 and `utilization_max`."""
    utilization_max: int
    fairness_loss: float
    """Figure of the last decision, as are the next three."""
    fairness_budget: float | None
    """None while the policy has none."""
    overhead: int
    """Running apps that it changed."""
    overhead_budget: int | None
    policy: str
    leader: str
    epoch: int
    nodes: int
    """Nodes that may get containers."""
    apps: int
    """Apps that have not ended."""
    waiting: int
    """Number of those without a partition."""
    decisions: int
    ended: int = 0
    """Apps that have ended and are still kept; views hold the latest of them."""
    kept_s: float = 0.0
    """How long an app is kept after its end, as far as its tenant has no time of its own."""
    policy_failure: str = ""
    """Reason why the policy's last answer was not usable; "" while it works."""
    paused: str = ""
    """Author and reason of the pause of scheduling; "" while it is not paused."""


class ChangeView(msgspec.Struct, frozen=True):
    """A decision's change of one app."""

    app: str
    name: str
    kind: str
    """`start`, `restart`, `live` or `stop`."""
    before: int | None
    """None if the state no longer knows."""
    after: int


class ReasonView(msgspec.Struct, frozen=True):
    app: str
    name: str
    code: str
    text: str


class DecisionView(msgspec.Struct, frozen=True):
    """A decision with its reasons."""

    position: str
    at: str
    policy: str
    policy_version: int
    solver: str
    status: str
    trigger: str
    utilization: float
    bound: float
    fairness_loss: float
    fairness_budget: float | None
    excess: float
    overhead: int
    overhead_budget: int | None
    change_cost: float
    changes: list[ChangeView]
    all_changes: int
    reasons: list[ReasonView]
    all_reasons: int


LISTS = {name: [kind.__name__ for kind in EVENTS if name in kind.KIND.lists] for name in get_args(List)}


class View(msgspec.Struct, frozen=True):
    """Everything at one moment."""

    position: str
    at: str | None
    """Log time; None before the first record."""
    cluster: ClusterView
    nodes: list[NodeView]
    """Nodes by name."""
    apps: list[AppView]
    """Apps by arrival."""
    decision: DecisionView | None
    work: list[WorkView] = []
    """In the order of `apps`."""
    lists: dict[str, list[str]] = msgspec.field(default_factory=lambda: LISTS)
    """The kinds of events by the lists in which a page shows them (`events.kinds.base.List`)."""


def view(state: State, decided: Logged | None = None, newest: Newest | None = None) -> View:
    """Return the view of a state.  `decided` is its last decision: `decision_in` of the record at `state.figures.seq`.
    `newest` is what apps have reported beside the log."""
    shown = shown_apps(state)
    places = {app.id: places_of(app) for app in shown}
    known = standings(problem_of(state, state.time)).apps if state.nodes else {}
    colors = colors_of(state.apps.values())
    apps = [app_view(app, known.get(app.id), state.time, colors[app.id]) for app in shown]
    index = {app.id: number for number, app in enumerate(apps)}
    nodes = [
        msgspec.structs.replace(node, containers=[Held(index[str(h.app)], *_counts(h)) for h in node.containers])
        for node in node_views(state, places)
    ]
    return View(
        position=str(state.seq),
        at=time_of(state.time),
        cluster=cluster_view(state, decided),
        nodes=nodes,
        apps=apps,
        decision=decision_view(state, decided) if decided is not None else None,
        work=[work_view(app, newest) for app in shown],
    )


def decision_in(record: Record) -> Logged | None:
    """Return the decision that a record holds, None for none."""
    return next((entry for entry in logged(record) if isinstance(entry.event, Resized)), None)


def time_of(time: int) -> str | None:
    """Return a log time as text, None for an unknown one."""
    return rfc3339(time) if time else None


# --- apps ---------------------------------------------------------------------------------------------------------------


def shown_apps(state: State) -> list[App]:
    """Return the apps of a view, by arrival: all that have not ended, the latest that have, and ended ones whose containers
    may still run."""
    oldest = state.time - ENDED_KEPT_S * SECOND
    ended = sorted((app.ended_at, app.id) for app in state.apps.values() if app.ended and app.ended_at >= oldest)
    latest = {name for _, name in ended[-MOST_ENDED:]}
    shown = [app for app in state.apps.values() if not app.ended or app.id in latest or _may_run(app)]
    return sorted(shown, key=lambda app: (app.seq, app.id))


def _may_run(app: App) -> bool:
    return any(not generation.ended for generation in app.generations.values())


def app_view(app: App, standing: Standing | None, now: int, color: int = 0) -> AppView:
    """At `now` (UTC ns).  `standing` is None for an app that is not in the policy's problem: it has ended, or pauses."""
    current = None if app.ended else app.current
    return AppView(
        id=app.id,
        name=app.name,
        user=app.user,
        phase=app.phase,
        containers=len(current.planned) if current is not None else 0,
        running=current.running if current is not None else 0,
        n_min=app.n_min,
        n_max=app.n_max,
        weight=app.weight,
        share=round(standing.share, 6) if standing is not None else 0.0,
        fair_share=round(standing.fair, 6) if standing is not None else 0.0,
        dominant=standing.dominant if standing is not None else "",
        demand=app.demand,
        engine=app.spec.engine,
        generation=app.generation,
        since=time_of(_since(app, current)),
        submitted_at=rfc3339(app.submitted_at),
        reason=reason_of(app, now),
        live=is_live(app),
        adjustments=app.adjustments,
        failures=app.failures,
        end_reason=app.end_reason,
        color=color,
        steps=app.spec.steps or None,
        labels=app.spec.labels,
        sweep=app.spec.group.name if app.spec.group is not None else "",
        trouble=_trouble(app),
    )


def _trouble(app: App) -> str:
    if app.ended or not any(delay.failing for _, delay in delays_of(app)):
        return ""
    return delay_without_time(app)


def work_view(app: App, newest: Newest | None = None) -> WorkView:
    """Return what an app has done.  `newest` is what apps have reported beside the log."""
    last = reported(app, newest)
    costs = (cost_s(record) for record in app.history)
    return WorkView(
        app=app.id,
        step=last.step,
        loss=last.loss,
        loss_is=last.loss_is,
        samples_per_s=last.samples_per_s,
        at=last.at // 1_000_000,
        left_s=_left_s(app, last.step),
        cost_s=round(sum(cost for cost in costs if cost is not None), 3),
        lost_steps=app.lost_steps,
        doubt=app.doubt is not None and app.ended != "completed",
    )


def _left_s(app: App, step: int) -> float | None:
    current = None if app.ended else app.current
    if not app.spec.steps or current is None or current.pace is None:
        return None
    pace, since = current.pace, current.same_since
    if since is not None and since.at > pace.first_at:
        pace = Pace(since.at, since.step, pace.last_at, pace.last_step)
    rate = pace.steps_per_s
    return round(min(max(0, app.spec.steps - step) / rate, _LONGEST_S), 1) if rate > 0 else None


def _since(app: App, current: Generation | None) -> int:
    """Return when the app's phase began (UTC ns), 0 if the state does not know."""
    if app.ended:
        return app.ended_at
    if current is None:
        return app.waiting_since or app.accepted_at
    if current.change is not None:
        return current.change.decided_at
    if not current.released:
        return current.decided_at
    return current.started_at or current.released_at


def places_of(app: App) -> dict[str, Held]:
    """Return the app's containers by node: those that may run, and those that should."""
    current = None if app.ended else app.current
    planned: dict[str, int] = {}
    up: dict[str, int] = {}
    held: dict[str, int] = {}
    leaving: dict[str, int] = {}
    kept = current.planned if current is not None else {}
    for container in kept.values():
        _count(planned, container.node)
        if container.state == "running":
            _count(up, container.node)
    for generation in app.generations.values():
        if not generation.released:
            continue
        for container in generation.all_containers():
            if container.state != "exited":
                _count(held, container.node)
                if generation is not current or kept.get(container.slot) is not container:
                    _count(leaving, container.node)
    return {
        node: Held(
            app.id,
            max(held.get(node, 0), planned.get(node, 0)),
            planned.get(node, 0) - up.get(node, 0),
            leaving.get(node, 0),
        )
        for node in sorted({*held, *planned})
    }


def _count(counts: dict[str, int], node: str) -> None:
    counts[node] = counts.get(node, 0) + 1


def _counts(held: Held) -> tuple[int, int, int]:
    return held.count, held.starting, held.stopping


# --- nodes --------------------------------------------------------------------------------------------------------------


def node_views(state: State, places: Mapping[str, Mapping[str, Held]]) -> list[NodeView]:
    """Return the nodes by name; `places` are the apps' containers by app and node, in the order of their arrival."""
    held: dict[str, list[Held]] = {}
    for by_node in places.values():
        for node, here in by_node.items():
            held.setdefault(node, []).append(here)
    views = (node_view(state, state.nodes[name], held.get(name, ())) for name in sorted(state.nodes))
    return [node for node in views if node is not None]


def node_view(state: State, node: Node, held: Iterable[Held]) -> NodeView | None:
    """Return None for a node that has left and holds nothing."""
    containers = list(held)
    if node.condition == "left" and not containers:
        return None
    used = dict.fromkeys(node.capacity, 0)
    for container in containers:
        app = state.apps.get(str(container.app))
        for kind, amount in app.demand.items() if app is not None else ():
            if kind in used:
                used[kind] += amount * container.count
    return NodeView(
        id=node.id,
        labels=node.labels,
        capacity=node.capacity,
        used=used,
        state=node.shown,
        containers=containers,
        address=node.address,
        runtime=node.runtime,
        note=trouble(state, node) or trouble_with_fitness(node) or with_remedy(state, node),
    )


# --- the cluster and its decisions --------------------------------------------------------------------------------------


def cluster_view(state: State, decided: Logged | None) -> ClusterView:
    placed = [(app, app.current) for app in state.apps.values() if not app.ended]
    holding: set[str] = set()
    count: dict[str, int] = {}
    for app, current in placed:
        if current is not None:
            count[app.id] = len(current.planned)
            holding.update(container.node for container in current.planned.values())
    counted = [node for node in state.nodes.values() if node.usable or node.id in holding]
    kinds = sorted({kind for node in counted for kind in node.capacity})
    capacity = {kind: sum(node.capacity.get(kind, 0) for node in counted) for kind in kinds}
    used = dict.fromkeys(kinds, 0)
    for app, _ in placed:
        for kind, amount in app.demand.items():
            if kind in used:
                used[kind] += amount * count.get(app.id, 0)
    fact = decided.event if decided is not None and isinstance(decided.event, Resized) else None
    failure = state.policy_failure
    return ClusterView(
        kinds=kinds,
        capacity=capacity,
        used=used,
        utilization=round(sum(used[kind] / capacity[kind] for kind in kinds if capacity[kind]), 6),
        utilization_max=len(kinds),
        fairness_loss=state.figures.fairness_loss,
        fairness_budget=_budget(fact.fairness_budget) if fact is not None else None,
        overhead=state.figures.overhead,
        overhead_budget=_whole_budget(fact.overhead_budget) if fact is not None else None,
        policy=state.settings.policy,
        leader=state.leader,
        epoch=state.epoch,
        nodes=sum(1 for node in state.nodes.values() if node.usable),
        apps=len(placed),
        waiting=sum(1 for _, current in placed if current is None),
        decisions=state.figures.decisions,
        ended=len(state.apps) - len(placed),
        kept_s=state.settings.retention_s,
        policy_failure=failure.reason if isinstance(failure, msgspec.Struct) else "",
        paused=paused_text(state),
    )


def decision_view(state: State, decided: Logged) -> DecisionView | None:
    """Return the decision in words and figures; None if the record holds none.  `state` knows the apps' names, and
    their containers before."""
    fact = decided.event
    if not isinstance(fact, Resized):
        return None
    reasons = sorted(fact.reasons.items())
    return DecisionView(
        position=str(decided.position),
        at=rfc3339(decided.time),
        policy=fact.policy,
        policy_version=fact.policy_version,
        solver=fact.solver,
        status=fact.status,
        trigger=fact.trigger,
        utilization=fact.utilization,
        bound=_finite(fact.bound),
        fairness_loss=fact.fairness_loss,
        fairness_budget=_budget(fact.fairness_budget),
        excess=_finite(fact.excess),
        overhead=fact.overhead,
        overhead_budget=_whole_budget(fact.overhead_budget),
        change_cost=fact.change_cost,
        changes=[_change_view(state, change) for change in fact.changes[:MOST_CHANGES]],
        all_changes=len(fact.changes),
        reasons=[ReasonView(app, _name(state, app), why.code, why.text) for app, why in reasons[:MOST_REASONS]],
        all_reasons=len(reasons) + fact.unsaid,
    )


def _change_view(state: State, change: Resize) -> ChangeView:
    return ChangeView(
        change.app, _name(state, change.app), change.adjustment, _before(state, change), len(change.placement)
    )


def _before(state: State, change: Resize) -> int | None:
    if change.adjustment == "start":
        return 0
    app = state.apps.get(change.app)
    if app is None:
        return None
    earlier = app.generations.get(change.from_generation)
    if earlier is not None:
        return len(earlier.containers) if change.adjustment != "live" or earlier.change is not None else None
    for record in reversed(app.history):
        if record.to_generation == change.to_generation:
            return record.containers_before
    return None


def _name(state: State, app: str) -> str:
    known = state.apps.get(app)
    return known.name if known is not None else app


def _finite(value: float) -> float:
    """Return 0 for numbers that JSON cannot express: a broken master can publish anything."""
    return value if abs(value) < 1e300 else 0.0


def _budget(value: float) -> float | None:
    return value if 0 <= value < 1e300 else None


def _whole_budget(value: int) -> int | None:
    return value if value >= 0 else None
