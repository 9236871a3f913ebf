"""The fold of live adjustments: a generation continues, and its members change.

    Resized             the target is planned: newcomers have a place, and hold nothing yet
    MembersReleased     their room is free: they start, and all members hear of the new membership
    MembershipChanged   its leader says that it trains: it is committed, and members that it leaves out are leaving
    MembersLost         members ended unasked, and enough still run: these are the membership from here on
    LiveResizeFailed    it did not train in time: the next generation has the target placement

Before its release a live adjustment holds nothing, so one whose newcomers lost their place is dropped.  Others may
count on the room that its leavers were to give up, so plans for that room are void as well (`drop_change`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.apps.faults import note_failure
from dorm.core.fold.effects import (
    adjust_counts,
    dissolve,
    drop_change,
    end_container,
    mark_dirty,
    note_ran,
    note_speed,
    note_work,
    void_plans,
)
from dorm.core.fold.folded import Folded, ignored
from dorm.core.state import HISTORY, AdjustmentRecord, Container, Held, LiveChange
from events import subjects

if TYPE_CHECKING:
    from dorm.core.state import App, Generation, State
    from events import kinds as k
    from events.log.records import Record


def plan(state: State, app: App, generation: Generation, change: k.Resize) -> bool:
    """Plan a live adjustment as it was decided.  Return False if it does not fit to the generation: then nothing changes."""
    newcomers = {}
    stay = []
    for placed in change.placement:
        known = generation.containers.get(placed.slot)
        if known is None:
            if placed.slot < generation.next_slot:
                return False
            newcomers[placed.slot] = Container(placed.slot, placed.node, placed.address, placed.port)
        elif (known.node, known.address, known.port) == (placed.node, placed.address, placed.port):
            stay.append(placed.slot)
        else:
            return False
    if not stay or change.membership != generation.announced + 1:
        return False
    generation.change = LiveChange(change.membership, stay, newcomers, decided_at=state.time, decided_seq=state.seq)
    return True


def may_be_resized_live(app: App, generation: Generation | None) -> bool:
    """Whether a live adjustment can begin: the decision's assumptions still hold."""
    return (
        generation is not None
        and generation.number == app.generation
        and generation.released
        and not generation.failed
        and generation.change is None
        and not app.ended
    )


def _announced(
    state: State, event: k.MembersReleased | k.MembersLost
) -> tuple[App, Generation, list[int]] | tuple[None, None, None]:
    """Return the app, its generation, and the members that stay. Return Nones and count the event as ignored if it is
    not about the membership after the last announced one, or if no member stays."""
    found = _in_force(state, event)
    if found is not None and event.membership == found[1].announced + 1:
        stay = [placed.slot for placed in event.members if placed.slot in found[1].containers]
        if stay:
            return (*found, stay)
    state.counters.ignored += 1
    return None, None, None


def _in_force(
    state: State, event: k.MembersReleased | k.MembersLost | k.LiveResizeFailed
) -> tuple[App, Generation] | None:
    app = state.apps.get(event.app)
    generation = app.generations.get(event.generation) if app else None
    if app is None or generation is None or app.ended or generation.number != app.generation:
        return None
    return (app, generation) if generation.released and not generation.failed else None


def members_released(state: State, event: k.MembersReleased) -> None:
    """Agents follow the master's records, so a release stands even if a node changed after its basis."""
    app, generation, stay = _announced(state, event)
    if app is None or generation is None or stay is None:
        return
    newcomers = {
        placed.slot: Container(placed.slot, placed.node, placed.address, placed.port)
        for placed in event.members
        if placed.slot not in generation.containers and placed.slot >= generation.next_slot
    }
    before = generation.change
    generation.change = LiveChange(
        membership=event.membership,
        stay=stay,
        newcomers=newcomers,
        decided_at=before.decided_at if before is not None else state.time,
        decided_seq=before.decided_seq if before is not None else state.seq,
        released_at=state.time,
    )
    generation.announced = event.membership
    generation.next_slot = max([generation.next_slot, *(slot + 1 for slot in newcomers)])
    for container in newcomers.values():
        node = state.nodes.get(container.node)
        if node is None or node.gone:
            end_container(state, app, generation, container, "lost", "its node was gone before it could start")


def membership_changed(state: State, event: k.MembershipChanged, record: Record) -> Folded:
    """Ignore it if it is not about the present generation, or not from a node of its."""
    app, generation = _reported(state, event, record)
    if app is None or generation is None:
        return ignored(state)
    app.missed_live = False
    change = generation.change
    if change is not None and change.released_at and event.membership == change.membership:
        target = {*change.stay, *change.newcomers}
        if sorted(event.members) == sorted(target.difference(event.lost)):
            _commit(state, app, generation, change, event)
    if event.change == "death" and event.membership == generation.membership:
        _accuse(state, app, generation, event)
    return "applied"


def epoch_completed(state: State, event: k.EpochCompleted, record: Record) -> Folded:
    """Ignore it as `membership_changed` does."""
    app, _ = _reported(state, event, record)
    if app is None:
        return ignored(state)
    app.epoch = event.epoch
    return "applied"


def _reported(
    state: State, event: k.MembershipChanged | k.EpochCompleted, record: Record
) -> tuple[App, Generation] | tuple[None, None]:
    """Note that the present generation works, if a node of its says so."""
    app = state.apps.get(event.app)
    generation = app.generations.get(event.generation) if app else None
    if app is None or generation is None or generation.number != app.generation or generation.failed or app.ended:
        return None, None
    who = subjects.who_of(record.subject)
    if not generation.released or not any(subjects.token(one.node) == who for one in generation.all_containers()):
        return None, None
    app.step, app.reports_progress = event.step, True
    if not generation.worked:
        note_work(state, app, generation)
    return app, generation


def _accuse(state: State, app: App, generation: Generation, event: k.MembershipChanged) -> None:
    gone = [
        slot
        for slot, member in generation.containers.items()
        if slot in event.lost and slot not in event.members and member.state != "exited"
    ]
    if gone:
        if not generation.accused:
            generation.accused_at = state.time
        generation.accused = sorted(dict.fromkeys([*gone, *generation.accused]))
        app.changed_seq = state.seq
        mark_dirty(state)


def _commit(state: State, app: App, generation: Generation, change: LiveChange, event: k.MembershipChanged) -> None:
    before = len(generation.containers)
    had_exited = generation.exited > 0
    note_speed(state, app, generation)
    if any(newcomer.state == "exited" for newcomer in change.newcomers.values()):
        note_ran(state, app, generation, state.time)
    for slot in [slot for slot in generation.containers if slot not in change.stay]:
        _dismiss(generation, slot)
    for slot, newcomer in change.newcomers.items():
        generation.containers[slot] = newcomer
    generation.change = None
    generation.accused = [slot for slot in generation.accused if slot in generation.containers]
    adjust_counts(generation)
    if had_exited and not generation.exited:
        generation.started_at = state.time
    generation.membership = generation.untold = change.membership
    generation.committed_at = state.time
    app.adjustments += 1
    app.history.append(
        AdjustmentRecord(
            from_generation=generation.number,
            to_generation=generation.number,
            containers_before=before,
            containers_after=len(generation.containers),
            decided_at=change.decided_at,
            stopped_at=change.decided_at,
            released_at=change.released_at,
            started_at=state.time,
            checkpoint=app.checkpoint,
            resumed_at=state.time,
            resumed_step=event.step,
            live=True,
            warm_up_s=event.warm_up_s,
            barrier_s=event.barrier_s,
            pause_s=event.pause_s,
            bytes_moved=event.bytes_moved,
        )
    )
    del app.history[:-HISTORY]
    mark_dirty(state)


def _dismiss(generation: Generation, slot: int) -> None:
    """A container that is no longer a member: it holds its room until it has exited."""
    container = generation.containers.pop(slot)
    if container.state != "exited":
        generation.leaving[slot] = container


def growth_that_failed(app: App, event: k.MembersLost) -> Held | None:
    """Return the size at which the app is held, if its newcomers failed by themselves before they joined; None if
    others did, or if other nodes may suit them: the app avoids the one on which they failed, if no member runs there."""
    current = app.current
    if current is None or current.change is None or event.failure in ("lost", "stopped", ""):
        return None
    if event.fault in ("open", "node") and not any(one.node == event.node for one in current.containers.values()):
        return None
    before, after = len(current.containers), len(current.planned)
    if after <= before or any(slot in current.containers for slot in event.lost):
        return None
    return Held(current.number, after, before)


def members_lost(state: State, event: k.MembersLost) -> None:
    app, generation, stay = _announced(state, event)
    if app is None or generation is None or stay is None:
        return
    note_failure(state, event)
    if generation.change is not None and not generation.change.released_at:
        drop_change(state, app, generation)
    had_exited = generation.exited > 0
    note_speed(state, app, generation)
    if not had_exited:
        note_ran(state, app, generation, state.time)
    before, joining = generation.change, generation.change.newcomers if generation.change is not None else {}
    named = {placed.slot for placed in event.members}
    stay_after_all = [one for slot, one in sorted(generation.containers.items()) if slot in named]
    kept_rooms = [one.node for one in stay_after_all if before is not None and one.slot not in before.stay]
    keep = named.union(event.leavers).difference(event.lost)
    for slot in [slot for slot in generation.containers if slot not in keep]:
        _dismiss(generation, slot)
    newcomers = {slot: one for slot, one in joining.items() if slot in named}
    generation.leaving |= {s: one for s, one in joining.items() if s not in named and one.state != "exited"}
    adjust_counts(generation)
    generation.change, generation.announced, generation.accused = None, event.membership, []
    generation.rests_until = event.resize_at
    if generation.started_at and not generation.exited:
        generation.started_at = state.time
    if newcomers or any(slot not in named for slot in generation.containers):
        generation.change = LiveChange(
            membership=event.membership,
            stay=stay,
            newcomers=newcomers,
            decided_at=before.decided_at if before is not None else state.time,
            decided_seq=before.decided_seq if before is not None else state.seq,
            released_at=state.time,
        )
    else:
        generation.membership = event.membership
        generation.committed_at = state.time
    if kept_rooms:  # Others may have planned for the room that these members were to give up.
        void_plans(state, kept_rooms)
    app.changed_seq = state.seq
    mark_dirty(state)


def membership_committed(state: State, event: k.MembershipCommitted) -> None:
    app = state.apps.get(event.app)
    generation = app.generations.get(event.generation) if app else None
    if generation is None or generation.untold != event.membership:
        state.counters.ignored += 1
        return
    generation.untold = 0


def live_resize_failed(state: State, event: k.LiveResizeFailed) -> bool:
    """Return whether the app is to be restarted as the event says."""
    found = _in_force(state, event)
    if found is None or event.restart.app != event.app or event.restart.to_generation != found[0].generation + 1:
        state.counters.ignored += 1
        return False
    app, generation = found
    app.missed_live = True
    dissolve(generation)
    return True
