"""The fold of the master's rounds: each fact of a round, in its order.

A round is decided from a state, its basis, and stored some records later.  Three things may have gone wrong by then,
and each has its own answer:

    void        the whole round: its master no longer leads (an earlier epoch), did not know the round before it (the
                fence), or skips epochs, which no election does.  Logs refuse such a round; the fold does not rely on
                that.  Without the fence, two masters that each believe they lead could place two apps in the same room
    overtaken   one change of a decision: its app (`App.changed_seq`) or a node of its placement (`Node.changed_seq`)
                changed after the basis.  A new generation is noted and void: it is never released, and another decision
                follows.  It has to be noted, because the generation before it stops in any case: agents follow the
                master's records and have read it.  A live change is not even noted, since members leave only once the
                new ones train; but the room that its leavers were to give up is not free for the other changes of the
                same decision, so these nodes count as changed
    ignored     one fact: about an app or generation that the log no longer has, or that repeats something

What is void keeps its place in nobody's count: releases look at what may run and at what is surely free, never at what
was decided.  A release, in contrast, stands even if a node changed after its basis: an agent may have started its
containers already, so to void it would lose them.  Containers that it releases to a node that is gone count as ended at
once.

An app that is stopped for a place that a change of nodes took from it meanwhile, or whose nodes go, is interrupted and
comes back before apps that never ran (`dorm.core.claims`).  A policy's choice to stop it is no interruption.

Failures count twice: for the app's own retries (`_count_retries`), and for what they allow it to take from others
(`_count_debt`, `dorm.core.sizes`).  Retries, progress and updates change nothing of the latter.

The reason why each app waits is the last decision's, and between decisions that of the limit of its group
(`note_reasons`, `note_groups`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dorm.core import faults, live, policy_in_force, revisions
from dorm.core.authority import is_by_master
from dorm.core.batches import note_batches
from dorm.core.containers import end_container, end_containers_on
from dorm.core.effects import (
    dissolve,
    drop_ended,
    forget_ended,
    interrupt,
    mark_dirty,
    mark_wait,
    note_figures,
    plan_drop,
    request_rebalance,
    void_plans_on,
)
from dorm.core.failures import counts_against, is_interruption
from dorm.core.folded import (
    APP,
    APP_PARTS,
    APPLIED,
    IGNORED,
    NODE,
    NODE_PARTS,
    UNKNOWN,
    VOID,
    Effect,
    ignored,
)
from dorm.core.gates import CODE, close_gates, closed, held_back, join_group, note_end
from dorm.core.identities import refusals_reported
from dorm.core.log_clock import catch_up, has_leapt, note_leap
from dorm.core.operating import app_killed
from dorm.core.preparing import begin_preparing, prepared_by
from dorm.core.promises import app_planned
from dorm.core.round_size import UNSAID
from dorm.core.shared_folder import settle_again
from dorm.core.sizes import in_debt, note_taken, rooms_left
from dorm.core.state import HISTORY, MOST, AdjustmentRecord, App, Container, Generation, Held
from dorm.core.submissions import begin
from events import kinds as k
from events.spec import can_be_read

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dorm.core.state import Ended, State
    from events.log.records import Record


# --- why apps wait ----------------------------------------------------------------------------------------------------

_ABOUT_GROUPS = (k.AppAccepted, k.AppCancelled, k.AppCompleted, k.AppFailed, k.AppRevised, k.Resized)
"""Facts after which others of a group may be held back, or may start."""


def note_reasons(state: State, event: k.Resized, basis: int) -> None:
    """Note the reason why each live app waits."""
    reasons = event.reasons
    for app_id in state.names.values():
        app = state.apps[app_id]
        if app_id in reasons:
            # The decision considered it, so its pause is over and this is why it waits now.
            app.waiting, app.retry_at = reasons[app_id], 0
        elif event.unsaid and app.seq <= basis and not app.retry_at and _below_n_max(app):
            app.waiting = UNSAID
        elif app.waiting is not None and not app.retry_at:
            app.waiting = None


def _below_n_max(app: App) -> bool:
    return app.current is None or len(app.current.planned) < app.n_max


def note_groups(state: State, facts: Sequence[Any]) -> list[str]:
    """Note after a round which apps their group's limit keeps waiting, and whose turn has come.  Return their ids."""
    noted: list[str] = []
    if not any(isinstance(fact, _ABOUT_GROUPS) for fact in facts):
        return noted
    members = [app for app_id in state.names.values() if (app := state.apps[app_id]).spec.group is not None]
    if not members:
        return noted
    reasons = held_back(state, state.time)
    for app in members:
        reason = reasons.get(app.id)
        if reason is not None:
            app.waiting, app.waiting_since = reason, 0
            noted.append(app.id)
        elif not app.generation and not app.waiting_since:
            noted.append(app.id)
            app.waiting_since = state.time
            if app.waiting is not None and app.waiting.code == CODE:
                app.waiting = None
    return noted


# --- a round ----------------------------------------------------------------------------------------------------------


def round_stored(state: State, event: k.Round, record: Record) -> Effect:
    """Fold a round, unless it is void.  Either way it fences the next one: a round counts only on the rounds' subject
    (`dorm.core.unread`)."""
    effect = fold_round(state, event, state.round_seq) if is_by_master(state, event, record) else VOID
    state.round_seq = state.seq
    return effect


def fold_round(state: State, event: k.Round, fence: int) -> Effect:
    """`fence` is the sequence of the round before.  A round of an earlier epoch, or one that was decided without
    knowing the round before it, is void: logs refuse such a round, and the fold does not rely on that.  So is a round
    that skips epochs, which no election does."""
    if not state.epoch <= event.epoch <= state.epoch + 1 or not fence <= event.basis < state.seq:
        state.counters.void_rounds += 1
        return VOID
    state.epoch = event.epoch
    if not event.allocated:  # That of an allocation is when it began to be computed; the next round says it.
        note_leap(state, event.at)
        if not any(isinstance(fact, k.MasterElected) for fact in event.events[:1]):  # It may state its own wall clock.
            catch_up(state, event.at)
    basis, facts = event.basis, []
    for fact in event.events:
        handler = _FACTS.get(type(fact))
        if handler is not None:
            facts.append(handler(state, fact))
        elif isinstance(fact, k.Resized):
            facts.append(_resized(state, fact, basis))
        elif isinstance(fact, k.LiveResizeFailed):
            facts.append(_live_resize_failed(state, fact, basis))
        elif isinstance(fact, k.IdleTicked):
            facts.append(policy_in_force.idle_ticked(state, basis))
        elif isinstance(fact, k.MasterElected):
            facts.append(_master_elected(state, fact, event.by))
        else:
            state.counters.unknown += 1
            facts.append(UNKNOWN)
    apps = note_groups(state, event.events)
    if state.next_drop_at and state.time >= state.next_drop_at and not has_leapt(state, event.at):
        apps += drop_ended(state)
    return Effect("applied", False, False, tuple(apps), (), settle_again(state), False, "", tuple(facts))


# --- apps ---------------------------------------------------------------------------------------------------------------


def _app_accepted(state: State, event: k.AppAccepted) -> Effect:
    submission = state.submissions.pop(event.submission, None)
    if event.app in state.apps:
        return ignored(state)
    spec = event.spec
    if not can_be_read(spec):
        return ignored(state)
    state.apps[event.app] = App(
        id=event.app,
        name=spec.name,
        user=spec.user if spec.user != "anonymous" or submission is None else submission.by,
        spec=spec,
        demand=spec.resources(),
        weight=spec.weight,
        n_min=spec.n_min,
        n_max=spec.n_max,
        submission=event.submission,
        submitted_at=submission.at if submission else state.time,
        seq=submission.seq if submission else state.seq,
        accepted_at=state.time,
        waiting_since=state.time,
        # Cancelled between the decision's basis and its round.
        cancel_requested=bool(submission and submission.refused),
        cancel_reason=submission.refused if submission else "",
    )
    begin(state, state.apps[event.app])
    state.names[state.apps[event.app].name_key] = event.app
    close_gates(state, state.apps[event.app], event.after)
    join_group(state, state.apps[event.app])
    mark_dirty(state)
    return Effect(app=True, apps=tuple(event.after)) if event.after else APP


def _app_rejected(state: State, event: k.AppRejected) -> Effect:
    state.submissions.pop(event.submission, None)
    return APPLIED


def _end(state: State, app_name: str, how: Ended, reason: str, cleared: tuple[str, ...] = ()) -> Effect:
    """End an app.  `cleared` are nodes about which its failures say nothing."""
    app = state.apps.get(app_name)
    if app is None or app.ended:
        return ignored(state)
    app.ended, app.ended_at, app.end_reason = how, state.time, reason
    app.waiting, app.waiting_since, app.retry_at, app.plan = None, 0, 0, None
    for generation in app.generations.values():
        dissolve(generation)
    if state.names.get(app.name_key) == app.id:
        del state.names[app.name_key]
    forget_ended(app)
    waiting = note_end(state, app)
    plan_drop(state, app)
    request_rebalance(state)
    mark_dirty(state)
    return Effect(app=True, apps=tuple(waiting), nodes=cleared, parts="touched") if waiting or cleared else APP_PARTS


def _app_completed(state: State, event: k.AppCompleted) -> Effect:
    return _end(state, event.app, "completed", "")


def _app_failed(state: State, event: k.AppFailed) -> Effect:
    app = state.apps.get(event.app)
    cleared: tuple[str, ...] = ()
    if app is not None and not app.ended:
        cleared = (event.node, *faults.note_failure(state, event)) if event.node else faults.note_failure(state, event)
    return _end(state, event.app, "failed", event.reason, cleared)


def _app_cancelled(state: State, event: k.AppCancelled) -> Effect:
    app = state.apps.get(event.app)
    if event.code and app is not None and not app.ended:
        app.end_code = event.code
    return _end(state, event.app, "cancelled", event.reason)


# --- generations --------------------------------------------------------------------------------------------------------


def _generation_failed(state: State, event: k.GenerationFailed) -> Effect:
    app = state.apps.get(event.app)
    generation = app.generations.get(event.generation) if app else None
    if app is None or generation is None or generation.failed:
        return ignored(state)
    cleared = faults.note_failure(state, event)
    _count_failure(state, app, generation, event)
    generation.failed = True
    dissolve(generation)
    app.retry_at = event.retry_at
    app.waiting = k.Waiting(code="retry", text=event.reason)
    mark_wait(state, app)
    mark_dirty(state)
    return Effect(app=True, node=True, nodes=cleared, parts="touched")


def _count_debt(state: State, app: App, event: k.GenerationFailed) -> None:
    """How much its failures allow it to take from others.  Retries, progress and updates by its owner change nothing
    here."""
    if is_interruption(event):
        interrupt(state, app)
        return
    app.interrupted_at = 0
    _count_own_debt(state, app)


def _count_own_debt(state: State, app: App) -> None:
    if not in_debt(app, state.time):
        app.debt, app.disturbs, app.room_taken = 0, False, False
    app.debt, app.barred = app.debt + 1, app.disturbs or app.room_taken


def _count_failure(state: State, app: App, generation: Generation, event: k.GenerationFailed) -> None:
    """For its retries, and for its next bounds."""
    _count_debt(state, app, event)
    _count_retries(state, app, event)
    if not (event.counted or event.fault == "open") or generation.worked:
        return
    app.failed_trials += 1
    size = len(generation.containers)
    if app.worked_with and size != app.worked_with:
        held = Held(generation.number, size, app.worked_with)
        if size > app.worked_with:
            app.held_most = held
        else:
            app.held_least = held


def _count_retries(state: State, app: App, event: k.GenerationFailed | k.MembersLost) -> None:
    if event.anew:
        app.retries_used, app.failures_in_a_row, app.port_failures = {}, 0, 0
        app.held_most = app.held_least = None
    if event.anew or event.counted:
        app.ran_ns = 0
    app.failures_in_a_row += 1
    app.port_failures += event.port
    if not event.counted:
        return
    app.failures += 1
    against = counts_against(app, event.failure)
    # With the open failures that turned out to be the app's own; logs of earlier versions have no such number.
    app.retries_used[against] = max(event.retries, app.retries_used.get(against, 0) + 1)


def _generation_released(state: State, event: k.GenerationReleased) -> Effect:
    app = state.apps.get(event.app)
    generation = app.generations.get(event.generation) if app else None
    if app is None or generation is None or generation.released_at:
        return ignored(state)
    generation.released_at, generation.folder = state.time, event.checkpoints or state.checkpoints
    generation.resume = event.resume
    if app.spec.elastic == "live":
        generation.founders = sorted(generation.containers)
    # Agents follow the master's records, so a release stands even if a node changed after its basis: containers may run by
    # now, and a void generation would not be counted among what holds room.
    generation.void = False
    app.waiting_since = app.interrupted_at = 0
    previous = app.generations.get(event.previous)
    pace = previous.pace.steps_per_s if previous is not None and previous.pace is not None else 0.0
    app.steps_per_s = pace or app.steps_per_s
    if previous is not None and generation.adjustment == "restart":
        app.adjustments += 1
        app.history.append(
            AdjustmentRecord(
                from_generation=previous.number,
                to_generation=generation.number,
                containers_before=len(previous.containers),
                containers_after=len(generation.containers),
                decided_at=generation.decided_at,
                stopped_at=previous.stopped_at,
                released_at=state.time,
                checkpoint=event.checkpoint,
                lost_steps=event.lost_steps,
                killed=event.killed,
                steps_per_s=pace,
                prepared_at=generation.stop_began(previous.stopped_at) if generation.prepare_until else 0,
                revision=generation.revision,
            )
        )
        del app.history[:-HISTORY]
    lost = app.lost_steps + event.lost_steps
    app.lost_steps = lost if lost < MOST else MOST
    app.step = event.checkpoint if event.resume and event.checkpoint is not None else 0
    app.retry_at = 0
    revisions.released(app, generation)
    _let_go(app, len(generation.containers))
    for number in [n for n in app.generations if n < generation.number]:
        del app.generations[number]
    for container in generation.containers.values():
        node = state.nodes.get(container.node)
        if node is None or node.condition == "left" or node.lease_ended:
            end_container(state, app, generation, container, "lost", "its node was gone before it could start")
    return APP_PARTS


def _let_go(app: App, size: int) -> None:
    """It gets the size from which it was held, so it is no longer held."""
    if app.held_most is not None and size > app.held_most.worked_with:
        app.held_most = None
    if app.held_least is not None and size < app.held_least.worked_with:
        app.held_least = None


def _resized(state: State, event: k.Resized, basis: int) -> Effect:
    gains: list[str] = []
    probed: list[str] = []
    # Live apps only, here and below: a round must not cost more for every app that ever ended.
    debtors = [app_in_debt for name in state.names.values() if (app_in_debt := state.apps[name]).debt]
    left = rooms_left(state, event, debtors) if debtors else None
    kept: list[str] = []
    for change in event.changes:
        app = state.apps.get(change.app)
        if app is None or change.to_generation != app.generation + (change.adjustment != "live"):
            state.counters.ignored += 1
            continue
        before = app.current
        if len(change.placement) > (len(before.planned) if before is not None else 0):
            gains.append(app.id)
        if change.adjustment == "live":
            kept += _resized_live(state, app, change, basis)
            continue
        probed += _next_generation(state, app, change, basis, revisions.take_pending(app))
    for name in dict.fromkeys(kept):
        void_plans_on(state, state.nodes[name])
    note_reasons(state, event, basis)
    note_batches(state, event)
    if left is not None:
        _note_disturbance(state, event, gains, debtors)
        note_taken(state, left)
    if _leaves_something(event):
        request_rebalance(state)
    if event.put_off and event.changes:
        mark_dirty(state)
    note_figures(state, event)
    policy_in_force.policy_works(state)
    return Effect(
        apps=(*(change.app for change in event.changes), *event.batches),
        nodes=tuple(probed),
        everything=bool(kept),
        reasons=True,
        parts="touched",
    )


def _resized_live(state: State, app: App, change: k.Resize, basis: int) -> list[str]:
    """Plan a live adjustment. If it is obsolete, the app stays as it is: return the nodes that its members were to
    leave, on which others in the same decision may count."""
    generation = app.current
    if generation is None or not live.may_be_resized_live(app, generation):
        # It fails, ends or changes already: what follows from that gives its room back, or does not, by itself.
        state.counters.ignored += 1
        return []
    overtaken = app.changed_seq > basis or app.cancel_requested or _nodes_changed(state, change, basis)
    if not overtaken and live.plan_change(state, app, generation, change):
        _move_port_cursors(state, change)
        app.waiting = None
        return []
    # The members stay where they are, so room that other changes of this decision count on is not freed: without voiding
    # their plans, each waited for the other's room.
    mark_dirty(state)
    target = {placed.slot for placed in change.placement}
    left = [container.node for slot, container in sorted(generation.containers.items()) if slot not in target]
    return [node for node in left if node in state.nodes]


def _next_generation(state: State, app: App, change: k.Resize, basis: int, revision: int) -> list[str]:
    """Begin the next generation.  Return the suspect nodes on which it is a probe."""
    before = app.current
    # To be stopped because its nodes go is no choice of the policy, so it comes back before apps that never ran.
    if not change.placement and before is not None and before.released and _nodes_go(state, before):
        interrupt(state, app)
    overtaken = app.changed_seq > basis or _nodes_changed(state, change, basis)
    if overtaken and app.changed_seq <= basis and before is not None and before.released:
        interrupt(state, app)  # It is stopped for a place that a change of nodes took from it meanwhile.
    if before is not None:
        # Agents stop it by this record, whether or not its successor is void; members that were to join never do.
        dissolve(before)
    app.generations[change.to_generation] = Generation(
        number=change.to_generation,
        containers={p.slot: Container(p.slot, p.node, p.address, p.port) for p in change.placement},
        adjustment=change.adjustment,
        decided_at=state.time,
        decided_seq=state.seq,
        master_port=change.master_port,
        void=overtaken,
        master_address=change.placement[0].address if change.placement else "",
        next_slot=max((p.slot + 1 for p in change.placement), default=0),
        revision=revision,
    )
    begin_preparing(app.generations[change.to_generation], change, state.time)
    app.generation = change.to_generation
    _move_port_cursors(state, change)
    _forget_unstarted(app)
    probed: list[str] = []
    if change.placement:
        app.retry_at, app.waiting = 0, None
        probed = faults.note_placed(state, app, [placed.node for placed in change.placement])
    mark_wait(state, app)
    if overtaken:
        mark_dirty(state)
    return probed


def _nodes_changed(state: State, change: k.Resize, basis: int) -> bool:
    """Return whether a node of the placement is gone, or has changed after `basis`."""
    for placed in change.placement:
        node = state.nodes.get(placed.node)
        if node is None or node.changed_seq > basis:
            return True
    return False


def _nodes_go(state: State, generation: Generation) -> bool:
    """Whether one of its nodes is drained or unavailable, so that moving it is not the policy's choice."""
    return any(
        (node := state.nodes.get(container.node)) is None or not node.usable
        for container in generation.planned.values()
    )


def _members_lost(state: State, event: k.MembersLost) -> Effect:
    app = state.apps.get(event.app)
    held = live.growth_that_failed(app, event) if app is not None else None
    effect = live.members_lost(state, event)
    if app is not None and effect is not IGNORED:
        app.held_most = held or app.held_most
        _count_retries(state, app, event)
        if not is_interruption(event):
            _count_own_debt(state, app)
    return effect


def _live_resize_failed(state: State, event: k.LiveResizeFailed, basis: int) -> Effect:
    if not live.live_resize_failed(state, event):
        return IGNORED
    app = state.apps[event.app]
    # It was placed by the demand that it has, not by that of a pending revision.
    known = app.revisions
    probed = _next_generation(state, app, event.restart, basis, known.in_force if known is not None else 1)
    return Effect(app=True, nodes=tuple(probed), parts="touched") if probed else APP_PARTS


def _note_disturbance(state: State, event: k.Resized, gains: list[str], debtors: list[App]) -> None:
    """Note which apps in debt others made room for: those that gained containers, or are to get some, while others were
    resized by the policy's choice.  If several gained, it counts for each, since the decision does not say for whom."""
    chosen = [
        change
        for change in event.changes
        if change.app in state.apps and not closed(state.apps[change.app], state.time)
    ]
    others = {change.app for change in chosen if change.adjustment in ("restart", "stop", "live")}
    stopped = {change.app for change in chosen if change.adjustment == "stop"}
    if not event.overhead and not stopped:
        return
    for app in debtors:
        if app.disturbs or not others - {app.id}:
            continue
        reason = event.reasons.get(app.id)
        waits_for_it = app.current is None and reason is not None and reason.code == "overhead"
        only_itself = app.id in others and event.overhead <= 1 and not stopped - {app.id}
        if (app.id in gains or waits_for_it) and not only_itself and in_debt(app, state.time):
            app.disturbs = True


def _leaves_something(event: k.Resized) -> bool:
    """Whether asking again may give more: the decision used up its budget of changes, or its solver stopped at a
    limit. A decision of a tick leaves something as long as it changes anything, so that ticks end."""
    if event.trigger == "idle":
        return bool(event.changes)
    return 0 < event.overhead_budget <= event.overhead or event.status != "optimal"


def _move_port_cursors(state: State, change: k.Resize) -> None:
    nodes = state.nodes
    for placed in change.placement:
        node = nodes.get(placed.node)
        if node is not None:
            node.port_cursor = placed.port
    if change.placement and change.master_port and change.placement[0].node in state.nodes:
        state.nodes[change.placement[0].node].port_cursor = change.master_port


def _forget_unstarted(app: App) -> None:
    """A generation that was never released and is not the latest will never be."""
    if len(app.generations) > 1:
        for number in [n for n, g in app.generations.items() if n != app.generation and not g.released_at]:
            del app.generations[number]


# --- nodes --------------------------------------------------------------------------------------------------------------


def _node_suspected(state: State, event: k.NodeSuspected) -> Effect:
    if not faults.suspected(state, event):
        return IGNORED
    void_plans_on(state, state.nodes[event.node])
    return NODE


def _node_trusted(state: State, event: k.NodeTrusted) -> Effect:
    if not faults.trusted(state, event.node, event.how):
        return ignored(state)
    request_rebalance(state)
    mark_dirty(state)
    return NODE


def _node_lost(state: State, event: k.NodeLost) -> Effect:
    node = state.nodes.get(event.node)
    if node is None or node.condition != "up":
        return ignored(state)
    node.condition = "lost"
    void_plans_on(state, node)
    # Nothing waits any longer for what it prepares, which the other nodes of these apps have to know.
    waiting = [app.id for app in state.apps.values() if node.id in prepared_by(app)]
    return Effect(node=True, apps=tuple(waiting), everything=True, parts="touched") if waiting else NODE_PARTS


def _node_recovered(state: State, event: k.NodeRecovered) -> Effect:
    node = state.nodes.get(event.node)
    if node is None or node.condition != "lost":
        return ignored(state)
    node.condition, node.lease_ended, node.up_at = "up", False, state.time
    node.changed_seq = state.seq
    request_rebalance(state)
    mark_dirty(state)
    return NODE_PARTS


def _node_lease_ended(state: State, event: k.NodeLeaseEnded) -> Effect:
    node = state.nodes.get(event.node)
    if node is None or node.condition != "lost" or node.lease_ended:
        return ignored(state)
    node.lease_ended = True
    end_containers_on(state, node.id, "its node was not heard until its lease had ended")
    return NODE_PARTS


def _master_elected(state: State, event: k.MasterElected, by: str) -> Effect:
    if event.epoch == state.epoch:
        state.leader, state.elected_at = by, state.time
        policy_in_force.note_plugins(state, event)
    return APPLIED


def _log_sealed(state: State, event: k.LogSealed) -> Effect:
    """A seal is about the log: the state is the same with and without."""
    return APPLIED


_FACTS: dict[type, Callable[[State, Any], Effect]] = {
    k.AppAccepted: _app_accepted,
    k.AppRejected: _app_rejected,
    k.AppCompleted: _app_completed,
    k.AppFailed: _app_failed,
    k.AppCancelled: _app_cancelled,
    k.AppKilled: app_killed,
    k.AppPlanned: app_planned,
    k.AppRevised: revisions.app_revised,
    k.AppRestarted: revisions.app_restarted,
    k.GenerationFailed: _generation_failed,
    k.GenerationReleased: _generation_released,
    k.MembersReleased: live.members_released,
    k.MembersLost: _members_lost,
    k.MembershipCommitted: live.membership_committed,
    k.NodeSuspected: _node_suspected,
    k.NodeTrusted: _node_trusted,
    k.NodeLost: _node_lost,
    k.NodeRecovered: _node_recovered,
    k.NodeLeaseEnded: _node_lease_ended,
    k.LogSealed: _log_sealed,
    k.PolicyFailed: policy_in_force.policy_failed,
    k.RecordsRefused: refusals_reported,
}
