"""The fold: `evolve(state, record)` brings the state one record further, in place.

It is total (no record makes it raise), idempotent by natural keys (app, generation, slot), and asks neither clock nor
chance: the same records give the same state, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dorm.core.admission import app_id, name_of
from dorm.core.policies import policy
from dorm.core.state import (
    HISTORY,
    AdjustmentRecord,
    App,
    Container,
    Generation,
    Node,
    State,
    Submission,
)
from events import kinds as k
from events.codec import decode, submission_of
from events.log import Record
from events.subjects import kind_of

Handler = Callable[[State, Any, Record], None]


class GapError(Exception):
    """A record does not follow the state's sequence: a bug or damage upstream, never to be folded over."""


def evolve(state: State, record: Record) -> k.Event:
    """Fold one record; gives the event that it held.  Raises GapError where the sequence is not the next one."""
    if record.seq != state.seq + 1:
        raise GapError(f"record {record.seq} does not follow {state.seq}")
    state.seq = record.seq
    if record.time > state.time:
        state.time = record.time
    event = decode(record)
    handler = _HANDLERS.get(type(event))
    if handler is not None:
        handler(state, event, record)
    return event


def _stir(state: State) -> None:
    """Something happened that could change the allocation."""
    state.stirred_seq = state.seq


# --- clients and operators ----------------------------------------------------------------------------------------------


def _app_submitted(state: State, event: k.AppSubmitted, record: Record) -> None:
    if event.id in state.submissions or app_id(name_of(event.spec), event.id) in state.apps:
        state.counters.ignored += 1
        return
    state.submissions[event.id] = Submission(
        id=event.id, seq=state.seq, at=state.time, by=event.by, spec=event.spec, size=len(record.body)
    )


def _unreadable(state: State, event: k.Unreadable, record: Record) -> None:
    state.counters.unreadable += 1
    _note_round(state, record)
    if submission_of(event):
        state.submissions[event.id] = Submission(
            id=event.id, seq=state.seq, at=state.time, by=event.by, spec=None, size=0, refused=event.reason
        )


def _unknown(state: State, event: k.Unknown, record: Record) -> None:
    state.counters.unknown += 1
    _note_round(state, record)


def _note_round(state: State, record: Record) -> None:
    """The log's fence counts every record on the rounds' subject, so a round that means nothing moves it, too."""
    if kind_of(record.subject) == k.Round.__name__:
        state.round_seq = state.seq


def _app_updated(state: State, event: k.AppUpdated, record: Record) -> None:
    app = state.find_app(event.app)
    n_min = event.n_min if event.n_min is not None else (app.n_min if app else 1)
    n_max = event.n_max if event.n_max is not None else (app.n_max if app else 1)
    refused = ""
    if app is None or app.ended:
        refused = f"there is no app {event.app!r} that could be updated"
    elif n_min > n_max:
        refused = f"n_min would be {n_min} and n_max {n_max}; n_min can't be the larger"
    if app is None or refused:
        state.submissions[event.id] = Submission(
            id=event.id, seq=state.seq, at=state.time, by=event.by, spec=None, size=0, refused=refused, app=event.app
        )
        return
    app.n_min, app.n_max = n_min, n_max
    if event.weight is not None:
        app.weight = event.weight
    _stir(state)


def _app_cancel_requested(state: State, event: k.AppCancelRequested, record: Record) -> None:
    app = state.find_app(event.app)
    if app is None or app.ended or app.cancel_requested:
        state.counters.ignored += 1
        return
    app.cancel_requested, app.cancel_reason = True, event.reason
    app.changed_seq = state.seq


def _node_drain_requested(state: State, event: k.NodeDrainRequested, record: Record) -> None:
    node = state.nodes.get(event.node)
    if node is None:
        state.counters.ignored += 1
        return
    if not event.drain:
        node.draining = ""
    elif node.draining != "operator":
        node.draining = "shutdown" if event.until_rejoin else "operator"
    _node_changed(state, node)
    _stir(state)


def _policy_changed(state: State, event: k.PolicyChanged, record: Record) -> None:
    """A policy that this build doesn't have, or parameters that it refuses, change nothing: the old ones stay in force."""
    settings = state.settings
    chosen = event.policy if event.policy is not None else settings.policy
    params = event.params if event.params is not None else ({} if event.policy is not None else settings.params)
    try:
        policy(chosen).check_params(params)
    except (LookupError, ValueError):
        state.counters.ignored += 1
        return
    settings.params = params
    for name in settings.__struct_fields__:
        value = getattr(event, name)
        if name != "params" and value is not None:
            setattr(settings, name, value)
    _stir(state)


# --- agents -------------------------------------------------------------------------------------------------------------


def _node_joined(state: State, event: k.NodeJoined, record: Record) -> None:
    old = state.nodes.get(event.node)
    state.nodes[event.node] = Node(
        id=event.node,
        address=event.address,
        capacity=dict(sorted(event.capacity.items())),
        labels=dict(sorted(event.labels.items())),
        ports=event.ports,
        runtime=event.runtime,
        draining="operator" if old and old.draining == "operator" else "",
        joined_at=state.time,
        changed_seq=state.seq,
        port_cursor=old.port_cursor if old else 0,
    )
    _stir(state)


def _node_left(state: State, event: k.NodeLeft, record: Record) -> None:
    node = state.nodes.get(event.node)
    if node is None or node.condition == "left":
        state.counters.ignored += 1
        return
    node.condition = "left"
    _node_changed(state, node)
    _end_containers_on(state, node.id, "the node left")
    _stir(state)


def _node_changed(state: State, node: Node) -> None:
    """Decisions made before this may count on a node that is no longer there to use: what they placed on it and did
    not release yet is void, so that the app is placed again instead of waiting for the node."""
    node.changed_seq = state.seq
    if node.usable:
        return
    for app in state.apps.values():
        generation = app.generations.get(app.generation)
        if generation and not generation.released and any(c.node == node.id for c in generation.containers.values()):
            generation.void = True


def _end_containers_on(state: State, node: str, message: str) -> None:
    for app_name in sorted(state.apps):
        app = state.apps[app_name]
        for number in sorted(app.generations):
            for container in app.generations[number].containers.values():
                if container.node == node and container.state != "exited" and app.generations[number].released:
                    _exit(state, app, app.generations[number], container, "lost", message)


def _exit(state: State, app: App, generation: Generation, container: Container, reason: str, message: str) -> None:
    container.state, container.exited_at = "exited", state.time
    container.reason, container.message = reason, message
    if not container.asked:
        app.changed_seq = state.seq
    if generation.ended:
        generation.stopped_at = state.time
    _stir(state)


def _container_of(state: State, event: Any) -> tuple[App, Generation, Container] | None:
    app = state.apps.get(event.app)
    generation = app.generations.get(event.generation) if app else None
    container = generation.containers.get(event.slot) if generation else None
    if app is None or generation is None or container is None or container.node != event.node:
        state.counters.ignored += 1
        return None
    return app, generation, container


def _container_started(state: State, event: k.ContainerStarted, record: Record) -> None:
    found = _container_of(state, event)
    if found is None:
        return
    app, generation, container = found
    if container.state != "desired":
        state.counters.ignored += 1
        return
    container.state, container.started_at = "running", state.time
    if all(c.state == "running" for c in generation.containers.values()):
        generation.started_at = state.time
        if app.history and app.history[-1].to_generation == generation.number:
            app.history[-1].started_at = state.time
        _stir(state)


def _container_exited(state: State, event: k.ContainerExited, record: Record) -> None:
    found = _container_of(state, event)
    if found is None:
        return
    app, generation, container = found
    if container.state == "exited":
        state.counters.ignored += 1
        return
    container.exit_code, container.asked = event.exit_code, event.asked
    if container.started_at == 0 and event.started_at:
        container.started_at = state.time
    _exit(state, app, generation, container, event.reason, event.message)
    if app.ended:
        _forget_ended(app)


def _forget_ended(app: App) -> None:
    """Earlier generations of which nothing is left say nothing more; the latest one stays to be looked at."""
    for number in [n for n, g in app.generations.items() if n != app.generation and g.ended]:
        del app.generations[number]


def _app_checkpointed(state: State, event: k.AppCheckpointed, record: Record) -> None:
    app = state.apps.get(event.app)
    if app is None or event.step < 0 or event.generation not in app.generations:
        state.counters.ignored += 1
        return
    app.checkpoint = event.step
    app.step = max(app.step, event.step)


def _app_progressed(state: State, event: k.AppProgressed, record: Record) -> None:
    app = state.apps.get(event.app)
    if app is None or event.step < 0 or event.generation not in app.generations:
        state.counters.ignored += 1
        return
    app.step = event.step
    if event.loss is not None:
        app.loss = event.loss
    if event.samples_per_s is not None:
        app.samples_per_s = event.samples_per_s


# --- the master ---------------------------------------------------------------------------------------------------------


def _round(state: State, event: k.Round, record: Record) -> None:
    state.round_seq = state.seq
    if event.epoch < state.epoch:
        state.counters.void_rounds += 1
        return
    state.epoch = event.epoch
    for fact in event.events:
        if isinstance(fact, k.Resized):
            _resized(state, fact, event.basis)
        else:
            _FACTS[type(fact)](state, fact)
    if state.next_drop_at and state.time >= state.next_drop_at:
        _drop_ended(state)


def _drop_ended(state: State) -> None:
    keep = int(state.settings.retention_s * 1e9)
    for app_name in [a.id for a in state.apps.values() if a.ended and a.ended_at + keep <= state.time]:
        del state.apps[app_name]
    _plan_drop(state)


def _plan_drop(state: State) -> None:
    ended = [app.ended_at for app in state.apps.values() if app.ended]
    state.next_drop_at = min(ended) + int(state.settings.retention_s * 1e9) if ended else 0


def _app_accepted(state: State, event: k.AppAccepted) -> None:
    submission = state.submissions.pop(event.submission, None)
    if event.app in state.apps:
        state.counters.ignored += 1
        return
    spec = event.spec
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
    )
    state.names[spec.name] = event.app
    _stir(state)


def _app_rejected(state: State, event: k.AppRejected) -> None:
    state.submissions.pop(event.submission, None)


def _end(state: State, app_name: str, how: str, reason: str) -> None:
    app = state.apps.get(app_name)
    if app is None or app.ended:
        state.counters.ignored += 1
        return
    app.ended = how  # type: ignore[assignment]  # one of the three callers' literals below
    app.ended_at, app.end_reason = state.time, reason
    app.waiting, app.retry_at = None, 0
    if state.names.get(app.name) == app.id:
        del state.names[app.name]
    _forget_ended(app)
    _plan_drop(state)
    _stir(state)


def _app_completed(state: State, event: k.AppCompleted) -> None:
    _end(state, event.app, "completed", "")


def _app_failed(state: State, event: k.AppFailed) -> None:
    _end(state, event.app, "failed", event.reason)


def _app_cancelled(state: State, event: k.AppCancelled) -> None:
    _end(state, event.app, "cancelled", event.reason)


def _generation_failed(state: State, event: k.GenerationFailed) -> None:
    app = state.apps.get(event.app)
    generation = app.generations.get(event.generation) if app else None
    if app is None or generation is None or generation.failed:
        state.counters.ignored += 1
        return
    generation.failed = True
    app.retry_at = event.retry_at
    if event.counted:
        app.failures += 1
    app.waiting = k.Waiting(code="retry", text=event.reason)
    _stir(state)


def _generation_released(state: State, event: k.GenerationReleased) -> None:
    app = state.apps.get(event.app)
    generation = app.generations.get(event.generation) if app else None
    if app is None or generation is None or generation.released:
        state.counters.ignored += 1
        return
    generation.released_at = state.time
    generation.resume = event.resume
    previous = app.generations.get(event.previous)
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
            )
        )
        del app.history[:-HISTORY]
    app.lost_steps += event.lost_steps
    app.step = event.checkpoint if event.resume and event.checkpoint is not None else 0
    app.retry_at = 0
    for number in [n for n in app.generations if n < generation.number]:
        del app.generations[number]


def _resized(state: State, event: k.Resized, basis: int) -> None:
    for change in event.changes:
        app = state.apps.get(change.app)
        if app is None or change.to_generation <= app.generation:
            state.counters.ignored += 1
            continue
        nodes = [state.nodes.get(placed.node) for placed in change.placement]
        overtaken = app.changed_seq > basis or any(node is None or node.changed_seq > basis for node in nodes)
        app.generations[change.to_generation] = Generation(
            number=change.to_generation,
            containers={
                p.slot: Container(slot=p.slot, node=p.node, address=p.address, port=p.port) for p in change.placement
            },
            adjustment=change.adjustment,
            decided_at=state.time,
            decided_seq=state.seq,
            master_port=change.master_port,
            void=overtaken,
        )
        app.generation = change.to_generation
        for placed in change.placement:
            if placed.node in state.nodes:
                state.nodes[placed.node].port_cursor = placed.port
        if change.placement and change.master_port and change.placement[0].node in state.nodes:
            state.nodes[change.placement[0].node].port_cursor = change.master_port
        _forget_unstarted(app)
        if overtaken:
            _stir(state)
    for app in state.apps.values():
        if not app.ended and not app.retry_at:
            app.waiting = event.reasons.get(app.id)
    state.figures.seq = state.seq
    state.figures.utilization = event.utilization
    state.figures.fairness_loss = event.fairness_loss
    state.figures.overhead = event.overhead
    state.figures.decisions += 1


def _forget_unstarted(app: App) -> None:
    """A generation that was never released and is not the latest will never be."""
    for number in [n for n, g in app.generations.items() if n != app.generation and not g.released]:
        del app.generations[number]


def _node_lost(state: State, event: k.NodeLost) -> None:
    node = state.nodes.get(event.node)
    if node is None or node.condition != "up":
        state.counters.ignored += 1
        return
    node.condition = "lost"
    _node_changed(state, node)
    _stir(state)


def _node_recovered(state: State, event: k.NodeRecovered) -> None:
    node = state.nodes.get(event.node)
    if node is None or node.condition != "lost":
        state.counters.ignored += 1
        return
    node.condition, node.lease_ended = "up", False
    node.changed_seq = state.seq
    _stir(state)


def _node_lease_ended(state: State, event: k.NodeLeaseEnded) -> None:
    node = state.nodes.get(event.node)
    if node is None or node.condition != "lost" or node.lease_ended:
        state.counters.ignored += 1
        return
    node.lease_ended = True
    _end_containers_on(state, node.id, "its node was not heard until its lease had ended")


def _master_elected(state: State, event: k.MasterElected) -> None:
    state.epoch = max(state.epoch, event.epoch)


_FACTS: dict[type, Callable[[State, Any], None]] = {
    k.AppAccepted: _app_accepted,
    k.AppRejected: _app_rejected,
    k.AppCompleted: _app_completed,
    k.AppFailed: _app_failed,
    k.AppCancelled: _app_cancelled,
    k.GenerationFailed: _generation_failed,
    k.GenerationReleased: _generation_released,
    k.NodeLost: _node_lost,
    k.NodeRecovered: _node_recovered,
    k.NodeLeaseEnded: _node_lease_ended,
    k.MasterElected: _master_elected,
}

_HANDLERS: dict[type, Handler] = {
    k.AppSubmitted: _app_submitted,
    k.AppUpdated: _app_updated,
    k.AppCancelRequested: _app_cancel_requested,
    k.NodeDrainRequested: _node_drain_requested,
    k.PolicyChanged: _policy_changed,
    k.NodeJoined: _node_joined,
    k.NodeLeft: _node_left,
    k.ContainerStarted: _container_started,
    k.ContainerExited: _container_exited,
    k.AppCheckpointed: _app_checkpointed,
    k.AppProgressed: _app_progressed,
    k.Round: _round,
    k.Unreadable: _unreadable,
    k.Unknown: _unknown,
}
