"""The question to a policy, and the use of its answer: from a state to an allocation.

Policies know nothing of failures, retries and outages.  Their consequences are in the problem (claims, bounds, pinned
apps), and in the choice of its apps:

    alone      apps for which nobody is resized (`dorm.core.sizes`) are left out if they would make anybody change, and
               then given what is free when everybody else has theirs, unless it is being cleared for another
    starting   an app that waits may start if one pauses after a failure, as long as nobody is resized for it
    whole      apps that are not resized (`dorm.core.resizable`) are pinned, unless others need their room
    first      apps that never ran are left out while one whose nodes went away can't come back yet (`dorm.core.claims`)

Apps that are kept whole stay as they are in the question, unless they have to change.  Two things release some of them,
to shrink, never to grow:

    relief      the answer leaves an app waiting, or with less than half its fair share.  The policy is asked again with
                some of them released: those whose restart undoes the least first, then four times as many, and so on.
                The first answer that helps counts; if none does, all of them stay
    too large   one of them has more than twice its fair share: it is released in the same way while others have less
                than theirs

What an app's weight counts for: a user chooses the weights of her own apps.  If `weights=apps`, she thereby takes from
everybody: an app of weight 9 has nine times the share of its neighbor.  If `weights=tenants`, all tenants weigh the
same, and the weights of a tenant's apps divide what the tenant has.  Neither a high weight nor more apps then take
anything from other tenants.  Weighted max-min fairness is over apps in both cases.  If a tenant's app has its maximum,
the rest of the tenant's share goes to all others, not first to the tenant's own apps, so a tenant has at most its share
while others can use theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np

from dorm.core.claims import HOLD_S, claims, held_back_for, pausing
from dorm.core.costs import Alike, adjust_s, held_since, is_live, measured, usual_adjust_s
from dorm.core.faults import keeps, placing
from dorm.core.gates import age_ns, closed, held_back
from dorm.core.offers import in_words, labels_of, require_of, stated, stays_where_it_is
from dorm.core.promises import planned_ahead
from dorm.core.resizable import NEVER, kept_whole, priced_s, undone_s
from dorm.core.round_size import MOST_CONTAINERS
from dorm.core.settings import weighs_tenants
from dorm.core.shared_folder import leaves_alone
from dorm.core.sizes import bounds, settles_until, takes_free_room_only
from dorm.policies import integer
from dorm.policies.integer import MOST_WEIGHT
from dorm.policies.problem import AppDemand, Batch, NodeRoom, Problem, Reason
from events.kinds import Waiting
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from dorm.core.claims import Claim
    from dorm.core.faults import Placing
    from dorm.core.offers import Stated
    from dorm.core.state import App, Generation, Node, State
    from dorm.policies.integer import Instance, Ints
    from dorm.policies.problem import Allocation, Policy


# --- what weights count for -------------------------------------------------------------------------------------------


def weighed(state: State, apps: list[AppDemand]) -> list[AppDemand]:
    """Return the apps of a problem with the weights that count, in the same order."""
    if not weighs_tenants(state.settings):
        return apps
    tenants = {app.id: state.apps[app.id].tenant for app in apps}
    sums: dict[str, float] = {}
    for app in apps:
        tenant = tenants[app.id]
        sums[tenant] = sums.get(tenant, 0.0) + _bounded(app.weight)
    return [msgspec.structs.replace(app, weight=_bounded(app.weight) / sums[tenants[app.id]]) for app in apps]


def _bounded(weight: float) -> float:
    """Return the weight, clipped to the range that policies distinguish, so that no sum is infinite."""
    return min(max(weight, 1 / MOST_WEIGHT), MOST_WEIGHT)


# --- apps that are kept whole -----------------------------------------------------------------------------------------

_FLOOR = 0.5
"""Part of its fair share: an app that has less may take room from one that is kept whole."""
_TOO_LARGE = 2
"""Multiple of its fair share: beyond it, an app that is kept whole gives room to all that have less than theirs. With a
lower factor, each app that arrives would restart it."""
_STEP = 4
"""Factor between the problems: with hundreds of apps that are kept whole, a policy is asked a few times more."""


class _HasAnswer(Protocol):
    @property
    def answer(self) -> Allocation: ...


Answered = TypeVar("Answered", bound=_HasAnswer)


class Kept(NamedTuple):
    """An app that is kept whole."""

    reason: Reason
    least: int
    """The containers that are left to it in any case."""
    undone_s: float
    """The work that a restart would undo, in seconds."""
    too_large: bool
    """Whether it has more than `_TOO_LARGE` times its fair share."""


def kept_of(state: State, problem: Problem, instance: Instance, now: int) -> dict[str, Kept]:
    """Return the apps that are kept whole at `now` (UTC ns): not those that are pinned for another reason, or that have to
    change.  `instance` is the problem's."""
    kept, fair = {}, _containers(instance, 1.0)
    forced = dict(zip((app.id for app in instance.apps), instance.forced.tolist(), strict=True))
    for app in problem.apps:
        known = state.apps[app.id]
        if app.pinned or app.again or forced[app.id] or (why := kept_whole(known, now)) is None:
            continue
        least = max(app.n_min, fair[app.id]) if why.code == NEVER else app.n_min
        too_large = sum(app.current.values()) > max(app.n_min, _TOO_LARGE * fair[app.id])
        kept[app.id] = Kept(why, least, undone_s(known, now), too_large)
    return kept


def limited(state: State, problem: Problem, instance: Instance, kept: Collection[str]) -> dict[str, int]:
    """Return the apps that are never resized and start now, or have to start again, with the most containers that they may
    start with.  `instance` is the problem's."""
    never_resized = [app for app in problem.apps if state.apps[app.id].spec.resizable == "never"]
    if not never_resized:
        return {}
    fair = _containers(instance, 1.0)
    return {
        app.id: max(app.n_min, fair[app.id])
        for app in never_resized
        if not app.pinned and not app.absent and app.id not in kept and max(app.n_min, fair[app.id]) < app.n_max
    }


def starts_with(most: int) -> Reason:
    """Return why an app that is never resized starts with no more than this."""
    size = "1 container" if most == 1 else f"{most} containers"
    return Reason(
        NEVER, f"resizable is never in its spec, so it starts with its fair share, at most {size}, and keeps it"
    )


def _containers(instance: Instance, part: float) -> dict[str, int]:
    """Return by app how many containers this part of its fair share is."""
    fair = integer.theoretical_shares(instance, instance.possible)
    unit = np.where(np.isfinite(instance.unit) & (instance.unit > 0), instance.unit, np.inf)
    units: Ints = np.floor(part * fair / unit + 1e-6).astype(np.int64)
    return {app.id: count for app, count in zip(instance.apps, (units * instance.gang).tolist(), strict=True)}


def answered(
    state: State, problem: Problem, kept: Mapping[str, Kept], now: int, ask: Callable[[Problem], Answered]
) -> tuple[Problem, Answered]:
    """Ask about a problem in which the apps of `kept` are pinned, and if that leaves others short, about some in which they
    are not; return the one that counts, with its answer."""
    first = ask(problem)
    able = [app.id for app in problem.apps if app.id in kept and sum(app.current.values()) > kept[app.id].least]
    able.sort(key=lambda app_id: (kept[app_id].reason.code == NEVER, kept[app_id].undone_s, app_id))
    for part, released in ((_FLOOR, able), (1.0, [app_id for app_id in able if kept[app_id].too_large])):
        lack = _lacking(state, problem, first.answer, kept, part, now) if released else None
        if lack is None or lack <= (0, 0):
            continue
        for other in _relief(problem, kept, released):
            answer_to_other = ask(other)
            then = _lacking(state, problem, answer_to_other.answer, kept, part, now)
            if then is not None and then < lack:
                return other, answer_to_other
    return problem, first


def _relief(problem: Problem, kept: Mapping[str, Kept], able: Sequence[str]) -> Iterator[Problem]:
    """Yield the problem with more and more of these apps released: they may shrink to what is left to them."""
    number = 1
    while True:
        released = frozenset(able[:number])
        apps = tuple(
            msgspec.structs.replace(app, pinned=False, n_min=kept[app.id].least, n_max=sum(app.current.values()))
            if app.id in released
            else app
            for app in problem.apps
        )
        yield msgspec.structs.replace(problem, apps=apps)
        if number >= len(able):
            return
        number *= _STEP


def _lacking(
    state: State, problem: Problem, answer: Allocation, kept: Mapping[str, Kept], part: float, now: int
) -> tuple[int, int] | None:
    """Return how many apps an answer lets wait although an empty cluster could run them, and how many containers other apps
    lack to this part of their fair share; None for an answer that stops an app of `kept`.

    An app for which room is being cleared over several rounds does not wait for help, and nobody is resized for one that fails
    again and again."""
    if not all(answer.counts.get(app_id) for app_id in kept):
        return None
    instance = integer.read(problem)
    shares = _containers(instance, part)
    waiting = short = 0
    for row, app in enumerate(instance.apps):
        given = answer.counts.get(app.id)
        if app.id in kept or app.pinned or app.absent or given is None:
            continue
        if given:
            short += max(0, shares[app.id] - sum(given.values()))
        elif instance.possible[row] and not takes_free_room_only(state.apps[app.id], now):
            reason = answer.reasons.get(app.id)
            waiting += not (answer.overhead and reason is not None and reason.code == "overhead")
    return waiting, short


# --- the question -----------------------------------------------------------------------------------------------------

_ITS_OWN = ("no_nodes", "drained", "ports", "constraint")
"""Codes of reasons for which an app cannot start, no matter which others wait."""


class Question(NamedTuple):
    """The question to a policy at one moment."""

    problem: Problem
    settling: tuple[str, ...]
    """Apps that are pinned because they have not worked since their last resize."""
    kept: tuple[str, ...]
    """Apps that pause and hold room: no decision about them is possible now."""
    give_way: tuple[str, ...]
    """Apps that pause and whose room a waiting app may use."""
    whole: Mapping[str, Kept]
    """Apps that are kept whole."""
    limited: Mapping[str, Reason]
    """Reason why these, and apps that start and are never resized, get no more."""
    where: Placing
    """Nodes that apps avoid, and suspect ones."""

    @property
    def decided(self) -> Problem:
        """Without apps that pause."""
        apps = tuple(app for app in self.problem.apps if app.id not in self.kept)
        return msgspec.structs.replace(self.problem, apps=apps)


def question(state: State, now: int, passed_over: Collection[str] = ()) -> Question:
    """At `now` (UTC ns).  Apps that are `passed_over` are no probes of suspect nodes."""
    claimed = claims(state, now)
    where = placing(state, now, {app_id: claim.place for app_id, claim in claimed.items()}, passed_over)
    problem, settling, whole, why = _pinned(state, problem_of(state, now, claimed, where), now)
    kept = tuple(app_id for app_id, claim in claimed.items() if claim.pausing)
    give_way = tuple(app_id for app_id in kept if not claimed[app_id].interrupted)
    return Question(
        problem,
        settling,
        kept,
        give_way,
        whole,
        why,
        where,
    )


def ask(
    chosen: Policy, state: State, query: Question, problem: Problem, params: dict[str, Any], now: int
) -> Allocation:
    """The policy's allocation for `problem`: the question's own, or one in which fewer apps may change."""
    answer = _first_those_who_ran(chosen, state, problem, params, now)
    waiting = [app.id for app in problem.apps if not app.current and not answer.counts.get(app.id)]
    may_start = [app_id for app_id in waiting if query.give_way or app_id not in answer.counts]
    if may_start and not _held_back(state, answer, now):
        left_out = [app_id for app_id in may_start if app_id not in answer.counts]
        if left_out and (first := _cleared_for(state, problem, answer, left_out)):
            reserved = Reason("reserved", f"room is being made for {first}, over several rounds")
            answer = _missing(answer, dict.fromkeys(left_out, reserved))
            may_start = [app_id for app_id in may_start if app_id not in left_out]
        answer = _with_starts(chosen, problem, params, answer, query.give_way, may_start) if may_start else answer
    return answer


def _cleared_for(state: State, problem: Problem, answer: Allocation, looping: Collection[str]) -> str:
    """Which app waits for room that is cleared over several rounds, by the answer or by earlier decisions; "" if none
    does.  An app of `looping` must not take the room that others are resized to free: it would have to be cleared
    again."""
    for app in problem.apps:
        if app.current or app.id in looping or answer.counts.get(app.id):
            continue
        reason, before = answer.reasons.get(app.id), state.apps[app.id].waiting
        clears = answer.overhead and reason is not None and reason.code == "overhead"
        if clears or (before is not None and before.code in ("overhead", "settling")):
            return app.id
    return ""


def problem_of(
    state: State, now: int, claimed: Mapping[str, Claim] | None = None, where: Placing | None = None
) -> Problem:
    """Nodes that are up (those that are drained are marked, so that reasons can name them), and every live app that may
    hold containers now, or that has a claim to some; without those that their group's limit keeps waiting, and those with a
    closed gate.

    An app is pinned while an adjustment of it is under way, while a part of it has ended, and while one of its nodes is
    lost: unreachable is not failed, so none of its containers is moved before the node's lease has ended.
    """
    apps = []
    if where is None:
        where = placing(state, now, {app_id: claim.place for app_id, claim in (claimed or {}).items()})
    alike, usual, later = Alike(state), usual_adjust_s(state), held_back(state, now)
    up = _up(state)
    among = stated(up)
    for app in state.live_apps():
        claim = claimed.get(app.id) if claimed else None
        if app.cancel_requested or app.id in later or closed(app, now):
            continue
        if claim is not None or not pausing(app, now):
            apps.append(_demand_of(state, app, claim, alike, usual, where, among, now))
    nodes = tuple(
        NodeRoom(
            id=node.id,
            capacity=node.capacity,
            labels=dict(where.labels(node, labels_of(node))),
            drained=bool(node.draining) or node.foreign,
            unmounted=node.foreign,
        )
        for node in up
    )
    return Problem(nodes=nodes, apps=tuple(weighed(state, apps)), at_s=now / SECOND)


def _up(state: State) -> list[Node]:
    return sorted((node for node in state.nodes.values() if node.condition == "up"), key=lambda node: node.id)


def _demand_of(
    state: State,
    app: App,
    claim: Claim | None,
    alike: Alike,
    usual_s: float | None,
    where: Placing,
    among: Stated,
    now: int,
) -> AppDemand:
    current, spec = app.current, app.next_spec
    may_have = bounds(app, now)
    known = measured(state, app)
    pinned = current is not None and not _may_change(state, app, current, now)
    return AppDemand(
        id=app.id,
        # An unchanged app keeps its present demand, whatever an edit demands for the next generation.
        demand=app.needs(current) if pinned and current is not None else app.next_demand,
        weight=app.weight,
        n_min=may_have.n_min,
        n_max=min(may_have.n_max if claim is None else claim.n_max, MOST_CONTAINERS - MOST_CONTAINERS % spec.gang),
        current=current.by_node() if current else claim.place if claim else {},
        pinned=pinned,
        again=app.restart_wanted,
        absent=claim is not None,
        require=where.require(app, require_of(app, among)),
        placement=spec.placement,
        gang=spec.gang,
        waited_s=_waited_s(app, now) if claim is None else 0.0,
        # It has to start anyhow, so other containers cost it nothing.
        adjust_s=priced_s(app, adjust_s(app), now) if claim is None and not app.restart_wanted else 0.0,
        usual_adjust_s=usual_s if claim is None and not is_live(app) else None,
        served_s=app.served_until(now) / SECOND,
        served_on=_served_on(state, app, now),
        held_s=max(0, now - held_since(current)) / SECOND if current else None,
        remaining_steps=float(max(0, spec.steps - app.step)) if spec.steps else None,
        speed=tuple(spec.speed),
        speed_on={kind: tuple(points) for kind, points in spec.speed_on.items()},
        measured=known,
        tried=max((speed.containers for speed in known), default=0) if not spec.speed else 0,
        alike=alike.of(app) if not known and not spec.speed else (),
        alike_by_type=alike.of_types(app, known),
        age_s=age_ns(app, now) / SECOND,
        adjustments=app.adjustments,
        batch=_batch_of(app),
        **planned_ahead(app, now),
    )


def _may_change(state: State, app: App, current: Generation, now: int) -> bool:
    """Whether a partition may be resized at `now` (UTC ns).  One whose owner asked for a restart need not have started, or
    rest after a failure; but what ends or changes live comes to its end first."""
    if app.restart_wanted:
        undisturbed = len(app.generations) == 1 and current.released and not current.exited
        ready = undisturbed and current.change is None and not current.leaving and not current.accused
    else:
        ready = app.settled and current.rests_until <= now
    if not ready or stays_where_it_is(state, app, current) or keeps(state, app, current):
        return False
    return _nodes_heard(state, current) and _may_move(state, current, now)


def _batch_of(app: App) -> Batch | None:
    """None while it has reported no noise: too little is known to give it another batch size than its own."""
    accepts = app.spec.batch
    if accepts is None or app.noise is None:
        return None
    return Batch(accepts.initial, accepts.least, accepts.most, accepts.per_container, app.noise)


def _served_on(state: State, app: App, now: int) -> dict[str, float]:
    """Return its container-seconds on nodes of each type, also of those that run now."""
    served = dict(app.served_on)
    for container in app.running_containers():
        node = state.nodes.get(container.node)
        if node is not None and node.type:
            served[node.type] = served.get(node.type, 0) + max(0, now - container.started_at)
    return {kind: ns / SECOND for kind, ns in sorted(served.items())}


def _waited_s(app: App, now: int) -> float:
    """How long nothing has been released to it, in whole seconds; 0 while it has a place."""
    if app.current is not None or not app.waiting_since:
        return 0.0
    return float(max(0, now - app.waiting_since) // SECOND)


def _nodes_heard(state: State, generation: Generation) -> bool:
    return all(
        (node := state.nodes.get(container.node)) is not None and node.condition != "lost"
        for container in generation.containers.values()
    )


def _may_move(state: State, generation: Generation, now: int) -> bool:
    """Whether none of its nodes has just lost the shared folder of checkpoints."""
    return not any(
        (node := state.nodes.get(container.node)) is not None and leaves_alone(state, node, now)
        for container in generation.containers.values()
    )


def _pinned(
    state: State, problem: Problem, now: int
) -> tuple[Problem, tuple[str, ...], dict[str, Kept], dict[str, Reason]]:
    """Pin apps that were resized and have not worked since, and apps that are kept whole, unless they cannot stay as they are.
    Return the former, the latter, and what limits these and other apps that are never resized."""
    fresh = [
        app.id for app in problem.apps if not app.pinned and not app.again and settles_until(state.apps[app.id], now)
    ]
    if not fresh and not any(_concerns_size(state.apps[app.id], now) for app in problem.apps if not app.pinned):
        return problem, (), {}, {}
    instance = integer.read(problem)
    forced = {app.id for app, has_to in zip(instance.apps, instance.forced.tolist(), strict=True) if has_to}
    settling = tuple(app_id for app_id in fresh if app_id not in forced)
    whole = kept_of(state, problem, instance, now)
    most = limited(state, problem, instance, whole)
    apps = tuple(
        msgspec.structs.replace(
            app, pinned=app.pinned or app.id in settling or app.id in whole, n_max=most.get(app.id, app.n_max)
        )
        for app in problem.apps
    )
    why = {app_id: kept.reason for app_id, kept in whole.items()}
    why |= {app_id: starts_with(count) for app_id, count in most.items()}
    return msgspec.structs.replace(problem, apps=apps), settling, whole, why


def _concerns_size(app: App, now: int) -> bool:
    return app.spec.resizable == "never" or kept_whole(app, now) is not None


# --- who is asked about -------------------------------------------------------------------------------------------------


def _first_those_who_ran(
    chosen: Policy, state: State, problem: Problem, params: dict[str, Any], now: int
) -> Allocation:
    """If one new app would start too early, all are left out: in the room of some, others could start."""
    answer = _alone(chosen, state, problem, params, now)
    first = _held_back(state, answer, now)
    newcomers = [app.id for app in problem.apps if not app.current]
    if first is None or not any(answer.counts.get(app_id) for app_id in newcomers):
        return answer
    reserved = Reason("reserved", f"{first.id} ran before its nodes went away and comes first, for at most {HOLD_S} s")
    before = {app_id: answer.reasons.get(app_id, reserved) for app_id in newcomers if not answer.counts.get(app_id)}
    own = {app_id: reason for app_id, reason in before.items() if reason.code in _ITS_OWN}
    answer = _alone(chosen, state, _without(problem, newcomers), params, now)
    return _missing(answer, {app_id: own.get(app_id, reserved) for app_id in newcomers})


def _held_back(state: State, answer: Allocation, now: int) -> App | None:
    return held_back_for(state, answer.counts, now)


def _alone(chosen: Policy, state: State, problem: Problem, params: dict[str, Any], now: int) -> Allocation:
    """The policy's, in which no running app is resized for one that fails again and again: if any is resized, which may
    be to clear its room over several rounds, or was for another that waits, those are left out."""
    answer = chosen.allocate(problem, params)
    looping = [app.id for app in problem.apps if takes_free_room_only(state.apps[app.id], now) and not app.current]
    if looping and (answer.overhead or _cleared_for(state, problem, answer, looping)):
        return chosen.allocate(_without(problem, looping), params)
    return answer


def _without(problem: Problem, left_out: Collection[str]) -> Problem:
    return msgspec.structs.replace(problem, apps=tuple(app for app in problem.apps if app.id not in left_out))


def _missing(answer: Allocation, reasons: Mapping[str, Reason]) -> Allocation:
    """With apps that get nothing because they were left out."""
    counts = {**answer.counts, **{app_id: {} for app_id in reasons}}
    return msgspec.structs.replace(
        answer, counts=dict(sorted(counts.items())), reasons=dict(sorted({**answer.reasons, **reasons}.items()))
    )


def _with_starts(
    chosen: Policy,
    problem: Problem,
    params: dict[str, Any],
    answer: Allocation,
    give_way: Collection[str],
    may_start: Collection[str],
) -> Allocation:
    """The answer, completed by the remaining room that the apps of `may_start` can have, for which those of `give_way`
    wait if necessary."""
    apps = []
    for app in problem.apps:
        given = answer.counts.get(app.id)
        if app.id in may_start:
            apps.append(app)
        elif given and app.id not in give_way:
            apps.append(msgspec.structs.replace(app, current=given, pinned=True))
    second = chosen.allocate(msgspec.structs.replace(problem, apps=tuple(apps)), params)
    started = {app_id: given for app_id in may_start if (given := second.counts.get(app_id))}
    reasons = {app_id: second.reasons[app_id] for app_id in may_start if app_id in second.reasons}
    if not started:
        return _missing(answer, {app_id: why for app_id, why in reasons.items() if app_id not in answer.counts})
    first = {app_id: why for app_id, why in answer.reasons.items() if app_id not in started}
    return msgspec.structs.replace(
        second,
        counts=dict(sorted({**answer.counts, **{app_id: {} for app_id in may_start}, **started}.items())),
        reasons=dict(sorted({**reasons, **first}.items())),
        fairness_budget=answer.fairness_budget,
        overhead=answer.overhead,
        overhead_budget=answer.overhead_budget,
        plans={**second.plans, **{app_id: plan for app_id, plan in answer.plans.items() if app_id not in started}},
        status=answer.status,
        bound=max(answer.bound, second.bound),
        change_cost=answer.change_cost,
        batches={**second.batches, **answer.batches},
    )


# --- in words -----------------------------------------------------------------------------------------------------------


def reasons_in_words(state: State, query: Question, answer: Allocation) -> dict[str, Waiting]:
    """By app.  An app in the middle of an adjustment keeps its reason, so that a change of phase alone puts no decision
    on the log."""
    reasons: dict[str, Waiting] = {}
    up = _up(state)
    among = stated(up)
    for app_id, reason in sorted(answer.reasons.items()):
        if app_id in query.kept or (app_id in query.limited and answer.counts.get(app_id)):
            continue
        before = state.apps[app_id].waiting
        if reason.code != "adjusting":
            app = state.apps[app_id]
            text = query.where.in_words(state, app, require_of(app, among), reason.text)
            own = Reason(reason.code, in_words(up, among, app, text))
            reasons[app_id] = _in_words(app_id, own, query, answer)
        elif before is not None:
            reasons[app_id] = before
    for app_id, reason in query.limited.items():
        if 0 < sum(answer.counts.get(app_id, {}).values()) < state.apps[app_id].n_max:
            reasons[app_id] = Waiting(code=reason.code, text=reason.text)
    return reasons


def _in_words(app_id: str, reason: Reason, query: Question, answer: Allocation) -> Waiting:
    """With two things that the policy can't know: which apps are left alone for a while, and which room only looks
    free."""
    if reason.code not in ("resources", "overhead", "floor") or app_id in query.settling:
        return Waiting(code=reason.code, text=reason.text)
    text = reason.text
    if query.kept:
        text += f"; what {_named(query.kept)} left by failing is kept for the next try"
    if query.settling and not answer.counts.get(app_id):
        text += f"; {_named(query.settling)} was resized last and is left alone until it works again"
        return Waiting(code="settling", text=text)
    return Waiting(code=reason.code, text=text)


def _named(apps: tuple[str, ...]) -> str:
    return apps[0] if len(apps) == 1 else f"{apps[0]} (or {len(apps) - 1} more)"
