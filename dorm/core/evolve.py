"""The fold: `evolve(state, record)` advances the state by one record, in place.

It is total (no record makes it raise), idempotent by natural keys (app, generation, slot), and uses neither clock nor
randomness: the same records give the same state, byte for byte.  Facts of clients, operators and agents are folded here, the
master's rounds in `dorm.core.rounds`.

A replay folds millions of records, so the code that runs for each record avoids generators, `min`, `max` and
properties: each costs as much as several plain statements.  `dorm bench codec` measures the fold beside
`msgpack.unpackb`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from msgspec import UNSET

from dorm.core import faults
from dorm.core.admission import app_id, check_room, name_of
from dorm.core.authority import enforce, is_by_master, submission_of_request
from dorm.core.containers import end_container, end_containers_on
from dorm.core.deadlines import note_started
from dorm.core.delays import container_delayed
from dorm.core.effects import drop_ended, forget_ended, mark_dirty, request_rebalance, void_plans_on
from dorm.core.folded import Folded, ignored
from dorm.core.gates import hold_requested, release_requested
from dorm.core.identities import identities_changed
from dorm.core.live import epoch_completed, membership_changed
from dorm.core.log_clock import set_back
from dorm.core.notes import app_noted
from dorm.core.operating import (
    drain_requested,
    forget_requested,
    request_kill,
    retry_requested,
    scheduling_paused,
    scheduling_resumed,
    trust_requested,
)
from dorm.core.policy_in_force import choose_policy
from dorm.core.preparing import containers_prepared
from dorm.core.progress import app_checkpointed, app_progressed, lines_skipped, note_doubt, resize_requested
from dorm.core.promises import forget_plans
from dorm.core.revisions import edit_requested, overtake_edits, restart_requested
from dorm.core.rounds import fold_round
from dorm.core.settings import (
    TIMES,
    policy_after,
    suspicion_after,
    tenant_apps_after,
    tenant_retention_after,
    times_of,
    weights_after,
)
from dorm.core.shared_folder import check_folder, settle_again, settle_folder
from dorm.core.state import (
    MOST,
    REFUSED_CHANGES,
    App,
    Container,
    Generation,
    Node,
    Refused,
    RefusedChange,
    ShortenedTime,
    State,
    Submission,
)
from dorm.core.submissions import app_of_request, queue, queue_refused
from events import kinds as k
from events import subjects
from events.codec import decode, submission_of
from events.errors import DormError
from events.identities import ends, may_hold
from events.limits import clipped
from events.log.records import Record
from events.spec import SpecError, check_gang, check_roles
from events.times import HarmfulTimes, SettingRefused, times_after

Handler = Callable[[State, Any, Record], Folded]


class GapError(DormError):
    """A record does not follow the state's sequence: a bug or damage upstream, never to be folded over."""

    code = "log.gap"


def evolve(state: State, record: Record) -> tuple[k.Event, Folded]:
    """Fold one record; return its event and what became of it.  Raises GapError if the sequence is not the next one."""
    seq, time = record.seq, record.time
    if seq != state.seq + 1:
        raise GapError(f"record {seq} does not follow {state.seq}")
    state.seq = seq
    if time < state.time:
        set_back(state, time)
    else:
        state.time = time if time < MOST else MOST
        if state.set_back is not UNSET:
            state.set_back = UNSET
    event = decode(record)
    known = state.identities
    if known is not UNSET:
        event, refused = enforce(state, known, event, record)
        if refused is not None:
            return event, refused
    return event, _HANDLERS[type(event)](state, event, record)


# --- clients and operators ----------------------------------------------------------------------------------------------


def _app_submitted(state: State, event: k.AppSubmitted, record: Record) -> Folded:
    if app_id(name_of(event.spec), event.id) in state.apps:
        return ignored(state)
    return queue(
        state,
        Submission(id=event.id, seq=state.seq, at=state.time, by=event.by, spec=event.spec, size=len(record.body)),
        record,
    )


def _unreadable(state: State, event: k.Unreadable, record: Record) -> Folded:
    state.counters.unreadable += 1
    _move_fence(state, record)
    if submission_of(event):
        queue_refused(state, event, record, event.reason, "submission.unreadable")
    return "unreadable"


def _unknown(state: State, event: k.Unknown, record: Record) -> Folded:
    state.counters.unknown += 1
    _move_fence(state, record)
    return "unknown"


def _move_fence(state: State, record: Record) -> None:
    """Every record on the rounds' subject, readable or not, moves the sequence that the log compares with the next round's
    expected one."""
    if subjects.kind_of(record.subject) == k.Round.__name__:
        state.round_seq = state.seq


def _app_updated(state: State, event: k.AppUpdated, record: Record) -> Folded:
    try:
        app = check_update(state, event, app_of_request(state, event.app, subjects.who_of(record.subject)))
    except SpecError as refused:
        queued = queue_refused(state, event, record, str(refused), refused.code, app=event.app)
        return "refused" if queued == "applied" else queued
    app.n_min = event.n_min if event.n_min is not None else app.n_min
    app.n_max = event.n_max if event.n_max is not None else app.n_max
    app.weight = event.weight if event.weight is not None else app.weight
    app.held_most = app.held_least = None
    if event.n_min is not None or event.n_max is not None:
        app.size_request = None
    app.failed_trials = 0
    faults.forget_failures(app)
    overtake_edits(state, app)
    mark_dirty(state)
    return "applied"


def check_update(state: State, event: k.AppUpdated, app: App | None) -> App:
    """Return the app if the update may change it.  Raises SpecError: an update that made a running app impossible would stop
    it."""
    if app is None or app.ended:
        raise SpecError(f"there is no app {event.app[:100]!r} that could be updated", code="app.not_found")
    n_min = event.n_min if event.n_min is not None else app.n_min
    n_max = event.n_max if event.n_max is not None else app.n_max
    changed = {name: bound for name, bound in (("n_min", event.n_min), ("n_max", event.n_max)) if bound is not None}
    check_gang(app.next_spec.gang, **changed)
    check_roles(app.next_spec, n_min)
    if n_min > n_max:
        text = f"n_min would be {n_min} and n_max {n_max}; n_min can't be the larger"
        raise SpecError(text, code="spec.n_min.above_n_max")
    if n_min > app.n_min:
        check_room(state, app.next_spec, n_min, app.tenant)
    return app


def _app_cancel_requested(state: State, event: k.AppCancelRequested, record: Record) -> Folded:
    who = subjects.who_of(record.subject)
    app = app_of_request(state, event.app, who)
    kills = event.kill and app is not None and request_kill(state, app)
    if app is not None and not app.ended and not app.cancel_requested:
        app.cancel_requested, app.cancel_reason, app.changed_seq = True, clipped(event.reason), state.seq
        return "applied"
    if kills:
        return "applied"
    submission = submission_of_request(state, event.app, who)
    if submission is None:
        return ignored(state)
    submission.refused = clipped(event.reason) or "it was cancelled before it was accepted"
    submission.refused_code = "submission.cancelled"
    return "applied"


def _policy_changed(state: State, event: k.PolicyChanged, record: Record) -> Folded:
    """Harmful times refuse the whole change, here as on every agent.  An unknown policy or refused parameters leave the old
    ones in force, and so does a folder of checkpoints that no node has.  The times hold even then: agents know neither
    policies nor other nodes."""
    settings = state.settings
    try:
        times = times_after(times_of(settings), event)
    except HarmfulTimes as refused:
        outcome = _refuse_change(state, event, refused, whole=True)
        for node in state.nodes.values():
            if not node.identity:  # Its agent is older than 0.6.0, and adopts such a lease anyway.
                node.lease_s = max(node.lease_s, event.node_lease_s or 0.0)
        return outcome
    outcome, decided_by = "applied", settings.policy
    try:
        choose_policy(state, *policy_after(settings, event, state.policy_plugins))
    except SettingRefused as refused:
        outcome = _refuse_change(state, event, refused, whole=False)
    if settings.policy != decided_by:
        forget_plans(state)
    for name in ("node_grace_s", "node_lease_s"):
        before, after = getattr(settings, name), getattr(times, name)
        if after < before:
            state.shortened[name] = ShortenedTime(state.seq, state.time, event.by, before, after)
    for name in TIMES:
        setattr(settings, name, getattr(times, name))
    settings.tenant_retention_s = tenant_retention_after(settings, event)
    settings.weights = weights_after(settings, event)
    settings.tenant_apps = tenant_apps_after(settings, event)
    settings.suspect_after, settings.suspect_within_s = suspicion_after(settings, event)
    try:
        check_folder(state, event)
    except SettingRefused as refused:
        outcome = _refuse_change(state, event, refused, whole=False)
    else:
        if event.checkpoints is not None:
            settings.checkpoints = event.checkpoints
            settle_folder(state)
    for node in state.nodes.values():
        node.lease_s = max(node.lease_s, settings.node_lease_s)
    if event.retention_s is not None or event.tenant_retention_s:
        drop_ended(state)
    mark_dirty(state)
    return outcome


def _refuse_change(state: State, event: k.PolicyChanged, error: DormError, *, whole: bool) -> Folded:
    ignored(state)
    refused = RefusedChange(
        id=event.id,
        seq=state.seq,
        at=state.time,
        by=event.by,
        reason=clipped(str(error)),
        whole=whole,
        code=error.code,
    )
    state.refused_changes = [*state.refused_changes, refused][-REFUSED_CHANGES:]
    return "refused"


# --- agents -------------------------------------------------------------------------------------------------------------


def _own(state: State, event: Any, record: Record) -> bool:
    """Return whether the record is on the node's own subject: permissions go by subjects, and its agent reads no other."""
    if subjects.who_of(record.subject) == subjects.token(event.node):
        return True
    ignored(state)
    return False


def _node_joined(state: State, event: k.NodeJoined, record: Record) -> Folded:
    if not _own(state, event, record):
        return "ignored"
    old = state.nodes.get(event.node)
    if old is not None and not may_hold(old.identity, event.identity, gone=old.gone):
        old.refused = Refused(event.identity, event.address, state.time)
        return "refused"
    node = state.nodes[event.node] = Node(
        id=event.node,
        address=event.address,
        capacity=dict(sorted(event.capacity.items())),
        labels=dict(sorted(event.labels.items())),
        ports=event.ports,
        runtime=event.runtime,
        draining=old.draining if old and old.draining != "shutdown" else "",
        joined_at=state.time,
        up_at=state.time,
        lease_s=max(state.settings.node_lease_s, event.lease_s),
        changed_seq=state.seq,
        checkpoints=event.checkpoints,
        foreign=old.foreign if old else False,
        foreign_at=old.foreign_at if old else 0,
        port_cursor=old.port_cursor if old else 0,
        identity=event.identity,
        refused=old.refused if old and old.identity == event.identity else None,
        prepares=event.prepares,
        abilities=sorted(set(event.abilities)) or UNSET,
        offers=UNSET if event.offers is None else event.offers,
        process=event.process or UNSET,
    )
    if old is not None:
        faults.carried_over(state, node, old)
    settle_folder(state)
    if old and (old.capacity, old.address, old.ports) != (node.capacity, node.address, node.ports):
        void_plans_on(state, node)
    request_rebalance(state)
    mark_dirty(state)
    return "applied"


def _node_left(state: State, event: k.NodeLeft, record: Record) -> Folded:
    node = state.nodes.get(event.node)
    if not _own(state, event, record):
        return "ignored"
    if node is None or node.condition == "left" or event.identity != node.identity:
        return ignored(state)
    if not ends(node.process or "", event.process):
        return ignored(state)
    node.condition, node.lease_ended = "left", False
    void_plans_on(state, node)
    end_containers_on(state, node.id, "the node left")
    return "applied"


def _container_of(state: State, event: Any, record: Record) -> tuple[App, Generation, Container] | None:
    """Return the container of an agent's report: a released container of its own node, reported by the machine that
    holds the node's name."""
    if not _own(state, event, record):
        return None
    node = state.nodes.get(event.node)
    if node is not None and event.identity != node.identity:
        ignored(state)
        return None
    try:
        app = state.apps[event.app]
        generation = app.generations[event.generation]
    except KeyError:
        ignored(state)
        return None
    container = generation.find(event.slot)
    if container is None or not generation.released_at or container.node != event.node:
        ignored(state)
        return None
    return app, generation, container


def _container_started(state: State, event: k.ContainerStarted, record: Record) -> Folded:
    found = _container_of(state, event, record)
    if found is None:
        return "ignored"
    app, generation, container = found
    if container.state != "desired":
        return ignored(state)
    container.state, container.started_at, container.delay = "running", state.time, UNSET
    app.origin_digest = event.origin_digest or app.origin_digest
    note_doubt(app, event)
    if app.run_time is not UNSET:
        note_started(app, state.time)
    if event.environment_s and not (
        generation.environment_s is not UNSET and event.environment_s <= generation.environment_s
    ):
        generation.environment_s = event.environment_s
    if generation.containers.get(event.slot) is not container:
        return "applied"
    generation.running += 1
    if generation.running == len(generation.containers):
        if not generation.started_at:
            generation.started_at = state.time
            if app.history and app.history[-1].to_generation == generation.number:
                app.history[-1].started_at = state.time
        mark_dirty(state)
    return "applied"


def _container_exited(state: State, event: k.ContainerExited, record: Record) -> Folded:
    found = _container_of(state, event, record)
    if found is None:
        return "ignored"
    app, generation, container = found
    if container.state == "exited":
        return ignored(state)
    container.exit_code, container.asked, container.killed = event.exit_code, event.asked, event.killed
    app.origin_digest = event.origin_digest or app.origin_digest
    note_doubt(app, event)
    if container.started_at == 0 and event.started_at:
        container.started_at = state.time
    faults.note_brief_run(state, container, event)
    if event.peer_lost and event.slot not in generation.accused:  # Else its peers lost it first.
        container.peer_lost = True
    end_container(state, app, generation, container, event.reason, event.message)
    if app.ended:
        forget_ended(app)
    return "applied"


def _round(state: State, event: k.Round, record: Record) -> Folded:
    if not is_by_master(state, event, record):
        state.round_seq = state.seq
        return "void"
    outcome = fold_round(state, event, fence=state.round_seq)
    settle_again(state)
    state.round_seq = state.seq  # A round counts only on the rounds' subject (`_move_fence`).
    return outcome


def _concerns_no_state(state: State, event: k.Event, record: Record) -> Folded:
    """Heartbeats and requests for a seal are for the master's shell, webhooks for the process that delivers them,
    sessions for those who look up who was where."""
    return "applied"


_HANDLERS: dict[type, Handler] = {
    k.AppSubmitted: _app_submitted,
    k.AppUpdated: _app_updated,
    k.AppCancelRequested: _app_cancel_requested,
    k.AppRetryRequested: retry_requested,
    k.AppNoted: app_noted,
    k.AppHoldRequested: hold_requested,
    k.AppReleaseRequested: release_requested,
    k.AppEditRequested: edit_requested,
    k.AppRestartRequested: restart_requested,
    k.NodeDrainRequested: drain_requested,
    k.NodeForgetRequested: forget_requested,
    k.NodeTrustRequested: trust_requested,
    k.SchedulingPaused: scheduling_paused,
    k.SchedulingResumed: scheduling_resumed,
    k.PolicyChanged: _policy_changed,
    k.NodeJoined: _node_joined,
    k.NodeLeft: _node_left,
    k.ContainersPrepared: containers_prepared,
    k.ContainerDelayed: container_delayed,
    k.ContainerStarted: _container_started,
    k.ContainerExited: _container_exited,
    k.AppCheckpointed: app_checkpointed,
    k.AppProgressed: app_progressed,
    k.ProgressLinesSkipped: lines_skipped,
    k.AppResizeRequested: resize_requested,
    k.MembershipChanged: membership_changed,
    k.EpochCompleted: epoch_completed,
    k.Round: _round,
    k.Unreadable: _unreadable,
    k.Unknown: _unknown,
    **dict.fromkeys(get_args(k.OfIdentities), identities_changed),
    **dict.fromkeys(
        (k.NodeReported, k.SealRequested, *get_args(k.OfRotation | k.OfWebhooks | k.OfSessions)), _concerns_no_state
    ),
}
