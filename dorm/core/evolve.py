"""The fold: `evolve(state, record)` advances the state by one record, in place.

It is total (no record makes it raise), idempotent by natural keys (app, generation, slot), and uses neither clock nor
randomness: the same records give the same state, byte for byte.  Each kind is folded by the module of its concept, which
`_HANDLERS` names; the facts of a round by `dorm.core.rounds`.  What a record touched, its handler reports
(`dorm.core.folded`).

A replay folds millions of records, so the code that runs for each record avoids generators, `min`, `max` and
properties: each costs as much as several plain statements.  `dorm bench codec` measures the fold beside
`msgpack.unpackb`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from dorm.core.admission import app_submitted
from dorm.core.authority import enforce
from dorm.core.containers import container_exited, container_started
from dorm.core.delays import container_delayed
from dorm.core.folded import Effect, Folded, concerns_no_state
from dorm.core.gates import hold_requested, release_requested
from dorm.core.identities import identities_changed
from dorm.core.joins import node_joined, node_left
from dorm.core.live import epoch_completed, membership_changed
from dorm.core.log_clock import set_back
from dorm.core.notes import app_noted
from dorm.core.operating import (
    cancel_requested,
    drain_requested,
    forget_requested,
    retry_requested,
    scheduling_paused,
    scheduling_resumed,
    trust_requested,
)
from dorm.core.policy_in_force import policy_changed
from dorm.core.preparing import containers_prepared
from dorm.core.progress import app_checkpointed, app_progressed, lines_skipped, resize_requested
from dorm.core.revisions import app_updated, edit_requested, restart_requested
from dorm.core.rounds import round_stored
from dorm.core.state import MOST, State
from dorm.core.unread import unknown, unreadable
from events import kinds as k
from events.codec import decode
from events.errors import DormError
from events.log.records import Record

Handler = Callable[[State, Any, Record], Effect]


class GapError(DormError):
    """A record does not follow the state's sequence: a bug or damage upstream, never to be folded over."""

    code = "log.gap"


def evolve(state: State, record: Record) -> Folded:
    """Fold one record; return its event, what became of it and what it touched.  Raises GapError if the sequence is not the
    next one."""
    seq, time = record.seq, record.time
    if seq != state.seq + 1:
        raise GapError(f"record {seq} does not follow {state.seq}")
    state.seq = seq
    if time < state.time:
        set_back(state, time)
    else:
        state.time = time if time < MOST else MOST
        if state.set_back:
            state.set_back = 0
    event = decode(record)
    known = state.known
    if known is not None:
        event, refused = enforce(state, known, event, record)
        if refused is not None:
            return Folded(event, refused)
    return Folded(event, _HANDLERS[type(event)](state, event, record))


_HANDLERS: dict[type, Handler] = {
    k.AppSubmitted: app_submitted,
    k.AppUpdated: app_updated,
    k.AppCancelRequested: cancel_requested,
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
    k.PolicyChanged: policy_changed,
    k.NodeJoined: node_joined,
    k.NodeLeft: node_left,
    k.ContainersPrepared: containers_prepared,
    k.ContainerDelayed: container_delayed,
    k.ContainerStarted: container_started,
    k.ContainerExited: container_exited,
    k.AppCheckpointed: app_checkpointed,
    k.AppProgressed: app_progressed,
    k.ProgressLinesSkipped: lines_skipped,
    k.AppResizeRequested: resize_requested,
    k.MembershipChanged: membership_changed,
    k.EpochCompleted: epoch_completed,
    k.Round: round_stored,
    k.Unreadable: unreadable,
    k.Unknown: unknown,
    **dict.fromkeys(get_args(k.OfIdentities), identities_changed),
    **dict.fromkeys(
        (k.NodeReported, k.SealRequested, *get_args(k.OfRotation | k.OfWebhooks | k.OfSessions)), concerns_no_state
    ),
}
