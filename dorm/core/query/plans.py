"""Plans: what the next decision would be if something happened first, by the same fold and decisions on a copy.

    plan(state, now, Assumed(specs=(…,), removed=("node-2",)), rounds=1)
    assumed_events(state, now, assumed)     the events that clients, operators and agents would publish, validated alike

Assumptions become records with the next sequence numbers, folded into the copy as the log's own would be; the copy's
master answers them (an app may be refused), publishes what follows at once, and then decides.  For further rounds every
adjustment is simulated to its end, each taking as long as was measured for that app; live ones by what their agents
would report (`play_live`).  Nothing of it leaves this function, and `state` is not changed.

    PlanError        an assumption is impossible (no such node or app, a spec that would be refused)
    UnknownSetting   an unknown policy, or a parameter or value that it does not accept
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dorm.core.asking import problem_of
from dorm.core.costs import adjust_s
from dorm.core.evolve import evolve
from dorm.core.gates import reason_of
from dorm.core.leader import Compute, Leader, Moment, Publish, settle
from dorm.core.next_round import decide
from dorm.core.offers import abilities_of_new, offers_of_new
from dorm.core.policy_in_force import announced
from dorm.core.query.assumed import Assumed, Figures, NewNodes, Plan, PlanError, PlannedApp, Round, UnknownSetting
from dorm.core.query.in_force import change_for
from dorm.core.query.standing import standings
from dorm.core.query.sweep_rows import sweeps
from dorm.core.query.views import paused_text, sizes, summary
from dorm.core.resizable import undone_s
from dorm.core.settings import parameters_in_force
from dorm.core.sizes import settles_until
from dorm.core.state import State
from dorm.policies.registry import assumes_pauses, policy
from dorm.policies.shares import fairness_budget
from events import kinds as k
from events import subjects
from events.codec import encode
from events.errors import code_of
from events.log.records import Record
from events.quantities import SECOND, humanize
from events.spec import AppSpec, CheckedSpec, SpecError, as_shipped
from events.spec.gates import in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dorm.core.state import App, Container, Generation, LiveChange, Node


# --- agents' events ---------------------------------------------------------------------------------------------------

E = TypeVar("E", bound=k.Event)
_OF_MACHINES = (k.NodeJoined, k.NodeLeft, k.ContainerStarted, k.ContainerExited)


def as_holder(state: State, event: E) -> E:
    """Return `event` with the identity of the machine that holds the node's name, so the fold accepts it."""
    if not isinstance(event, _OF_MACHINES):
        return event
    node = state.nodes.get(event.node)
    if node is None or event.identity == node.identity:
        return event
    return msgspec.structs.replace(event, identity=node.identity)


# --- live adjustments -------------------------------------------------------------------------------------------------

_MOST_ROUNDS = 1000
"""Number of rounds, more than adjustments can wait for each other's room."""


def play_live(state: State, say: Callable[[k.Event, str], None], settle: Callable[[], object]) -> None:
    """Play released live adjustments until there are none: each may free the room for another one."""
    for _ in range(_MOST_ROUNDS):
        reports = [report for app in state.live_apps() for report in _facts(state, app)]
        if not reports:
            return
        for event, node in reports:
            say(event, node)
        settle()


def _facts(state: State, app: App) -> Iterator[tuple[k.Event, str]]:
    current = app.current
    change = current.change if current is not None else None
    if current is None or change is None or not change.released_at:
        return
    heard = {node.id for node in state.nodes.values() if node.condition == "up"}
    if any(container.node not in heard for container in current.planned.values()):
        return
    about: dict[str, Any] = {"app": app.id, "generation": current.number}
    for slot, newcomer in change.newcomers.items():
        if newcomer.state == "desired":
            yield k.ContainerStarted(**about, slot=slot, node=newcomer.node), newcomer.node
    yield _trains(app, current, change), current.planned[min(current.planned)].node
    for slot, member in current.containers.items():
        if slot not in change.stay and member.state != "exited":
            yield k.ContainerExited(**about, slot=slot, node=member.node, exit_code=0), member.node


def _trains(app: App, current: Generation, change: LiveChange) -> k.MembershipChanged:
    return k.MembershipChanged(
        app=app.id,
        generation=current.number,
        membership=change.membership,
        step=app.step,
        members=sorted(current.planned),
        change="grow" if change.newcomers else "shrink",
    )


# --- plans ------------------------------------------------------------------------------------------------------------

_CLUSTER = "plan"
_WHO = "plan"
_PORTS = (20_000, 31_999)
MOST_ROUNDS = 100


def plan(state: State, now: int, assumed: Assumed | None = None, *, rounds: int = 1) -> Plan:
    """Return the next `rounds` decisions.  `now` (UTC ns) is not before the state's own time.  While scheduling is paused,
    these are the decisions that follow its resumption.  Raises PlanError."""
    now = max(now, state.time)
    course = _Course(state, now)
    course.settle()
    lines = course.assume(assumed or Assumed())
    done: list[Round] = []
    costs: dict[str, tuple[float, bool]] = {}
    for index in range(rounds):
        if index:
            course.play(costs)
        costs = {**course.costs(), **costs}
        decided = course.decide()
        if decided is None or not decided.changes:
            break
        done.append(
            Round(
                changed=len(decided.changes),
                overhead=decided.overhead,
                overhead_budget=decided.overhead_budget,
                excess=decided.excess,
                status=decided.status,
            )
        )
    before = copy_of(state)
    apps = _apps(before, course.state, costs, now)
    return Plan(
        seq=state.seq,
        at=now,
        assumed=lines,
        changes=any(app.kind for app in apps),
        apps=apps,
        before=_figures(before, now),
        after=_figures(course.state, course.now),
        rounds=done,
        paused=paused_text(state),
    )


def assumed_events(state: State, now: int, assumed: Assumed) -> tuple[list[str], list[tuple[k.Event, str]]]:
    """Return the assumptions in words, and as the events that their publishers would append, each with its publisher.  A node
    that is removed has left.  Raises PlanError as `plan` does."""
    course = _Course(state, max(now, state.time))
    course.settle()
    lines = course.assume(assumed)
    return lines, course.published


_STATE = msgspec.msgpack.Decoder(State)


def copy_of(state: State) -> State:
    """Return a copy that shares nothing with the state, and has the same digest."""
    return _STATE.decode(msgspec.msgpack.encode(state))


def _figures(state: State, now: int) -> Figures:
    total = summary(state)
    standing = standings(problem_of(state, now))
    settings = state.settings
    theta1 = policy(settings.policy).check_params(settings.params).get("theta1")
    return Figures(
        nodes=total.nodes,
        utilization=total.utilization,
        utilization_max=total.utilization_max,
        fairness_loss=standing.fairness_loss,
        fairness_budget=-1.0 if theta1 is None else fairness_budget(standing.kinds, theta1),
        waiting=sum(1 for app in state.live_apps() if app.current is None),
    )


def _apps(before: State, after: State, costs: dict[str, tuple[float, bool]], now: int) -> list[PlannedApp]:
    """Return every app that is alive in one of the two, with what a change at `now` (UTC ns) costs it."""
    ids = {app.id: None for state in (before, after) for app in state.live_apps()}
    planned = []
    for name in ids:
        old, new = before.apps.get(name), after.apps.get(name)
        app = new or old
        assert app is not None
        had, has = sizes(old) if old else {}, sizes(new) if new else {}
        kind = "" if had == has and not _moves(old, new) else "stop" if not has else "restart" if had else "start"
        kind = "live" if kind == "restart" and old and new and old.generation == new.generation else kind
        cost = costs.get(name) if kind in ("restart", "live") else None
        planned.append(
            PlannedApp(
                name=app.name,
                id=name,
                before=sum(had.values()),
                after=sum(has.values()),
                nodes_before=had,
                nodes_after=has,
                kind=kind,
                adjust_s=cost[0] if cost else None,
                measured=bool(cost and cost[1]),
                lost_s=undone_s(old, now) if old is not None and kind in ("restart", "stop") else 0.0,
                end=app.ended,
                reason=reason_of(app, after.time),
            )
        )
    return planned


def _moves(old: App | None, new: App | None) -> bool:
    """Return whether it has to restart in the same places, as after the end of one of its nodes."""
    return bool(old and new and old.current and new.current and new.generation != old.generation)


class _Course:
    """A copy of the state, driven as its master, clients and agents would."""

    def __init__(self, state: State, now: int) -> None:
        self.state = copy_of(state)
        self.state.known = None  # Assumed events need no authority.
        self.state.paused = None
        self.now = now
        self.published: list[tuple[k.Event, str]] = []
        """Events of publishers other than the master, with the publisher."""
        self._leader = Leader(self.state, epoch=self.state.epoch)

    # --- saying ---------------------------------------------------------------------------------------------------------

    def say(self, event: k.Event, who: str = _WHO) -> None:
        self.published.append((event, who))
        subject = subjects.fact(_CLUSTER, type(event).__name__, who)
        self._fold(subject, encode(as_holder(self.state, event)), event.id)

    def _fold(self, subject: str, body: bytes, id: str) -> None:
        seq = self.state.seq + 1
        self.now = max(self.now, self.state.time)
        evolve(self.state, Record(seq, self.now, subject, body, id or f"{_WHO}.{seq}"))
        self._leader.folded(self.now)

    def _publish(self, publication: Publish) -> None:
        event = msgspec.structs.replace(
            publication.round, id=f"{_WHO}.{publication.round.epoch}.{publication.round.basis}", by=_WHO
        )
        self._fold(subjects.rounds(_CLUSTER), encode(event), event.id)

    def round(self, facts: Sequence[Any]) -> None:
        self._publish(self._leader.round(facts, self.now))

    def settle(self) -> list[Any]:
        """Publish everything that follows at once: answers, ends, failures, releases; return the facts."""
        facts: list[Any] = []

        def publish(round: Publish) -> None:
            facts.extend(round.round.events)
            self._publish(round)

        settle(self._leader, lambda: Moment(self.now, self.now), publish, allocate=False)
        return facts

    def decide(self) -> k.Resized | None:
        """Compute and publish the next allocation, whether or not one is due."""
        self.settle()
        request = Compute(self.now, self.state.seq)
        publication = self._leader.computed(request, decide(self.state, self.now, allocate=True))
        if publication is None:
            return None
        for fact in publication.round.events:
            if isinstance(fact, k.PolicyFailed):
                raise PlanError(f"policy {fact.policy} fails: {fact.reason}", code=fact.code)
        self._publish(publication)
        return next((fact for fact in publication.round.events if isinstance(fact, k.Resized)), None)

    def costs(self) -> dict[str, tuple[float, bool]]:
        """Return the seconds of its work that a pause of each app costs, and whether that was measured."""
        settings = self.state.settings
        assumed = float(parameters_in_force(settings, self.state.plugins).get("adjust_s", 0.0))
        by_others = not assumes_pauses(settings.policy)
        by_app = {}
        for app in problem_of(self.state, self.now).apps:
            unmeasured = app.usual_adjust_s if by_others and app.usual_adjust_s is not None else assumed
            # One that is restarted anyway costs the decision nothing; its owner wants to know.
            known = self.state.apps[app.id]
            measured = adjust_s(known) if app.again or undone_s(known, self.now) else app.adjust_s
            by_app[app.id] = (unmeasured, False) if measured is None else (measured, True)
        return by_app

    # --- what is assumed ------------------------------------------------------------------------------------------------

    def assume(self, assumed: Assumed) -> list[str]:
        """Let the assumptions happen, with everything that follows at once; return them in words.  Raises PlanError."""
        running = {app.id for app in self.state.live_apps() if app.current is not None}
        lines = self._set(assumed.settings)
        for nodes in assumed.joins:
            lines.append(self._join(nodes))
        lines += [self._remove(node) for node in assumed.removed]
        lines += [self._drain(node) for node in assumed.drained]
        lines += [self._use_again(node) for node in assumed.undrained]
        lines += [self._cancel(app) for app in assumed.cancelled]
        lines += [self._cancel_sweep(sweep) for sweep in assumed.cancelled_sweeps]
        lines += [self._update(change) for change in assumed.updated]
        lines += [self._edit(app, spec) for app, spec in assumed.edited]
        lines += [self._hold(app) for app in assumed.held]
        lines += [self._release(app) for app in assumed.released]
        lines += [self._restart(app) for app in assumed.restarted]
        self.settle()
        lines += [self._submit(index, assumed.specs[index]) for index in _in_order(assumed.specs)]
        self._restart_failed(running)
        return lines

    def _set(self, settings: dict[str, Any]) -> list[str]:
        if not settings:
            return []
        try:
            change, lines = change_for(settings, self.state)
        except ValueError as error:
            raise UnknownSetting(str(error), code=code_of(error)) from None
        for plugin in announced(change.policy) if change.policy else ():
            self.state.plugins = {**self.state.plugins, plugin.name: plugin}
        self.say(change)
        return lines

    def _node(self, name: str) -> Node:
        if name not in self.state.nodes:
            known = ", ".join(sorted(self.state.nodes)[:10])
            raise PlanError(
                f"there is no node {name!r}" + (f"; there are {known}" if known else "; none has joined yet"),
                code="node.not_found",
            )
        return self.state.nodes[name]

    def _join(self, new: NewNodes) -> str:
        model = self._node(new.like) if new.like else None
        capacity = {**(model.capacity if model else {}), **new.capacity}
        labels = {**(model.labels if model else {}), **new.labels}
        able = abilities_of_new(self.state)
        joined: list[str] = []
        number = 0
        while len(joined) < new.count:
            number += 1
            node = f"new-{number}"
            if node not in self.state.nodes:
                ports = model.ports if model else _PORTS
                alike = model.offers if model is not None else offers_of_new(self.state)
                # A new machine is as fit as it can be, even if its model is not.
                offers = msgspec.structs.replace(alike, unfit=[]) if isinstance(alike, k.NodeOffers) else None
                event = k.NodeJoined(
                    node=node,
                    address=node,
                    capacity=capacity,
                    labels=labels,
                    ports=ports,
                    offers=offers,
                    abilities=able,
                )
                self.say(event, node)
                joined.append(node)
        shape = ", ".join(humanize(name, amount) for name, amount in sorted(capacity.items()))
        marks = "".join(f", {name}={value}" for name, value in sorted(labels.items()))
        named = joined[0] if len(joined) == 1 else f"{joined[0]} to {joined[-1]}"
        return f"{new.count} more node{'' if new.count == 1 else 's'} of {shape}{marks} ({named})"

    def _remove(self, name: str) -> str:
        node = self._node(name)
        if node.condition == "left" or node.lease_ended:
            raise PlanError(f"{name} has gone already", code="node.gone")
        ended = k.NodeLeaseEnded(node=name, last_heard=self.now)
        lost = [k.NodeLost(node=name, last_heard=self.now)] if node.condition == "up" else []
        self.round([*lost, ended])
        self.published.append((k.NodeLeft(node=name), name))
        return f"without {name}"

    def _drain(self, name: str) -> str:
        self._node(name)
        self.say(k.NodeDrainRequested(node=name))
        return f"{name} drained"

    def _use_again(self, name: str) -> str:
        self._node(name)
        self.say(k.NodeDrainRequested(node=name, drain=False))
        return f"the drain of {name} ended"

    def _app(self, name: str) -> App:
        app = self.state.find_app(name)
        if app is None:
            known = ", ".join(list(self.state.names)[:10])
            raise PlanError(
                f"there is no app {name!r}" + (f"; there are {known}" if known else ""), code="app.not_found"
            )
        if app.ended:
            raise PlanError(f"{app.name} has ended already ({app.ended})", code="app.ended")
        return app

    def _cancel(self, name: str) -> str:
        app = self._app(name)
        self.say(k.AppCancelRequested(app=app.id))
        return f"{app.name} cancelled"

    def _cancel_sweep(self, wanted: str) -> str:
        tenant, _, name = wanted.rpartition("//")
        apps = [
            app
            for (owner, group), members in sweeps(self.state).items()
            if group == name and tenant in ("", owner)
            for app in members
            if not app.ended
        ]
        if not apps:
            raise PlanError(f"there is no sweep {wanted!r} with an app that has not ended", code="sweep.not_found")
        for app in apps:
            self.say(k.AppCancelRequested(app=app.id))
        return f"{len(apps)} app{'' if len(apps) == 1 else 's'} of {name} cancelled"

    def _hold(self, name: str) -> str:
        app = self._app(name)
        self.say(k.AppHoldRequested(app=app.id))
        return f"{app.name} held"

    def _release(self, name: str) -> str:
        app = self._app(name)
        self.say(k.AppReleaseRequested(app=app.id))
        return f"{app.name} released"

    def _update(self, change: k.AppUpdated) -> str:
        app = self._app(change.app)
        given = {"n_min": change.n_min, "n_max": change.n_max, "weight": change.weight}
        before = {name: getattr(app, name) for name in given}
        id = f"{_WHO}.{self.state.seq}"
        self.say(msgspec.structs.replace(change, app=app.id, id=id))
        for fact in self.settle():
            if isinstance(fact, k.AppRejected) and fact.submission == id:
                raise PlanError(f"{app.name}: {fact.reason}", code=fact.code)
        changes = [f"{name} = {value} (now {before[name]})" for name, value in given.items() if value is not None]
        return f"{app.name} with {' and '.join(changes)}"

    def _edit(self, name: str, spec: AppSpec) -> str:
        app = self._app(name)
        revision = app.revision
        self._answered(app, k.AppEditRequested(app=app.id, spec=msgspec.to_builtins(spec)))
        return f"{app.name} edited (revision {revision + 1})"

    def _restart(self, name: str) -> str:
        app = self.state.find_app(name)
        if app is None:
            raise PlanError(f"there is no app {name!r}", code="app.not_found")
        self._answered(app, k.AppRestartRequested(app=app.id))
        return f"{app.name} restarted"

    def _answered(self, app: App, event: k.AppEditRequested | k.AppRestartRequested) -> None:
        """Let the master answer a request. Raises PlanError if it refuses."""
        id = f"{_WHO}.{self.state.seq}"
        self.say(msgspec.structs.replace(event, id=id))
        for fact in self.settle():
            if isinstance(fact, k.AppRejected) and fact.submission == id:
                raise PlanError(f"{app.name}: {fact.reason}", code=fact.code)

    def _submit(self, index: int, spec: CheckedSpec) -> str:
        """Submit an app; the answer is immediate, as on a log without other events."""
        id = f"{_WHO}.{index}.{self.state.seq}"
        self.say(k.AppSubmitted(id=id, by=_WHO, spec=msgspec.to_builtins(as_shipped(spec))))
        for fact in self.settle():
            if isinstance(fact, k.AppRejected) and fact.submission == id:
                raise PlanError(f"{spec.name} would be refused: {fact.reason}", code=fact.code)
        return f"{spec.name} submitted"

    def _restart_failed(self, running: set[str]) -> None:
        """Stop partitions that lost a node by the assumptions, and let the pause before their retry pass: otherwise the
        decision would not show what becomes of them."""
        self.settle()
        hit = [app for app in self.state.live_apps() if app.id in running and app.current is None and app.retry_at]
        if hit:
            self._stop()
            self.now = max(self.now, *(app.retry_at for app in hit))
            self.settle()

    # --- what agents would say ------------------------------------------------------------------------------------------

    def play(self, costs: dict[str, tuple[float, bool]]) -> None:
        """Play every adjustment to its end, the fastest first."""
        begin = self.now
        self._stop()
        self.settle()
        play_live(self.state, self.say, self.settle)
        starts: list[tuple[int, str, Generation]] = []
        for app in self.state.live_apps():
            current = app.current
            if current is not None and current.released and not current.started_at:
                pause = costs.get(app.id, (0.0, False))[0] if current.adjustment == "restart" else 0.0
                starts.append((begin + int(pause * SECOND), app.id, current))
        for at, app_id, current in sorted(starts, key=lambda start: start[:2]):
            self.now = max(self.now, at)
            for container in list(current.containers.values()):
                if container.state == "desired" and self._heard(container.node):
                    self.say(k.ContainerStarted(**_place(app_id, current, container)), container.node)
            self._work(self.state.apps[app_id])
        self.settle()

    def _work(self, app: App) -> None:
        """Let it work until it may be resized again: its first step, if it reports steps."""
        until = settles_until(app, self.now)
        if until and app.reports_progress and app.current is not None:
            report = k.AppProgressed(app=app.id, generation=app.generation, step=app.step + 1)
            self.say(report, app.current.containers[min(app.current.containers)].node)
        elif until:
            self.now = until

    def _stop(self) -> None:
        """Let everything that is to stop stop, with its checkpoint written."""
        for app in list(self.state.apps.values()):
            for number in sorted(app.generations):
                generation = app.generations.get(number)
                if generation is None or not generation.released:
                    continue
                if number == app.generation and not generation.failed and not app.ended:
                    continue
                self._stop_generation(app, generation)

    def _stop_generation(self, app: App, generation: Generation) -> None:
        left = [c for c in generation.containers.values() if c.state != "exited" and self._heard(c.node)]
        if left and app.step > (app.checkpoint or 0) and not app.ended:
            report = k.AppCheckpointed(app=app.id, generation=generation.number, step=app.step)
            self.say(report, left[0].node)
        for container in left:
            event = k.ContainerExited(**_place(app.id, generation, container), exit_code=143, asked=True)
            self.say(event, container.node)

    def _heard(self, node: str) -> bool:
        return node in self.state.nodes and self.state.nodes[node].condition == "up"


def _in_order(specs: Sequence[CheckedSpec]) -> list[int]:
    try:
        return in_order(specs)
    except SpecError as error:
        raise PlanError(str(error), code=error.code) from None


def _place(app: str, generation: Generation, container: Container) -> dict[str, Any]:
    return {"app": app, "generation": generation.number, "slot": container.slot, "node": container.node}
