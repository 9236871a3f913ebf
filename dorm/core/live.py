"""Live adjustments: a generation continues while members join and leave (`elastic: live`).

    Resized                                                               the target is planned (`Generation.change`):
                                                                          newcomers have a place, and hold nothing yet
    MembersReleased                                                       their room is free: they start, and all
                                                                          members hear of the new membership
    MembershipChanged                                                     its leader says that it trains: it is
                                                                          committed, and members that it leaves out are
                                                                          leaving
    MembershipCommitted agents read of it, and members that left may stop
    MembersLost                                                           members ended unasked, and enough still run:
                                                                          these are the membership from here on
    LiveResizeFailed                                                      it did not train in time: the next generation
                                                                          has the target placement

The invariants, and what breaks without each:

    announced        memberships are numbered, and a release or a loss is about the one after the last announced.
                     Members may already train in what was announced, so nothing that a reader has heard of is taken
                     back: a later membership replaces it
    slots            a slot belongs to one container for the whole generation (`next_slot`): newcomers get slots that it
                     never had.  Otherwise a late report about a container that left would count for the one that has
                     its slot now
    leaving          a container that is no longer a member holds its room until it has exited (`leaving`).  Its room
                     was given away once while it was still saving
    one at a time    no adjustment begins while another one is under way, or while the generation fails
                     (`may_be_resized_live`)
    before release   a change holds nothing.  If its newcomers lost their place it is dropped, and the app stays as it
                     is.  Others may count on the room that its leavers were to give up, so plans for that room are void
                     as well (`dorm.core.effects.drop_change`)
    after release    agents have read it, so it stands even if a node changed after its basis: a newcomer whose node is
                     gone counts as ended.  It ends by training, by a loss, or by its deadline
    accused          a member that its peers report as gone may still run.  It counts against the app like an end
                     (`MembersLost`), but holds its room until the log has its end
    overtaken        a planned change that is decided from an old basis is ignored, and the nodes that its leavers were
                     to give up are void for the others of the same decision (`dorm.core.rounds`): the app did not move

Too few members left, or none that trains, is a failure of the generation (`dorm.core.failures`).  Newcomers that never
joined cost no retry and never end an app whose members train: it stays at the size that works, and is held there if
they failed by themselves (`growth_that_failed`, `dorm.core.sizes`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dorm.core import deadlines, failures
from dorm.core.containers import end_container, note_ran, note_speed, note_work
from dorm.core.effects import adjust_counts, dissolve, drop_change, mark_dirty, void_plans
from dorm.core.faults import Fault, note_failure
from dorm.core.folded import APP, APP_PARTS, IGNORED, Effect, ignored
from dorm.core.state import HISTORY, AdjustmentRecord, Container, Held, LiveChange
from events import subjects
from events.kinds import (
    AppFailed,
    LiveResizeFailed,
    MembershipCommitted,
    MembersLost,
    MembersReleased,
    Placed,
    Resize,
)
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dorm.core.state import App, Generation, State
    from events import kinds as k
    from events.kinds import GenerationFailed
    from events.log.records import Record


# --- the fold ---------------------------------------------------------------------------------------------------------


def plan_change(state: State, app: App, generation: Generation, change: k.Resize) -> bool:
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
    in_force = _in_force(state, event)
    if in_force is not None and event.membership == in_force[1].announced + 1:
        stay = [placed.slot for placed in event.members if placed.slot in in_force[1].containers]
        if stay:
            return (*in_force, stay)
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


def members_released(state: State, event: k.MembersReleased) -> Effect:
    """Agents follow the master's records, so a release stands even if a node changed after its basis."""
    app, generation, stay = _announced(state, event)
    if app is None or generation is None or stay is None:
        return IGNORED
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
        # No agent will ever report this one's end, and the change would wait for it until its deadline.
        node = state.nodes.get(container.node)
        if node is None or node.gone:
            end_container(state, app, generation, container, "lost", "its node was gone before it could start")
    return APP_PARTS


def membership_changed(state: State, event: k.MembershipChanged, record: Record) -> Effect:
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
    return APP


def epoch_completed(state: State, event: k.EpochCompleted, record: Record) -> Effect:
    """Ignore it as `membership_changed` does."""
    app, _ = _reported(state, event, record)
    if app is None:
        return ignored(state)
    app.epoch = event.epoch
    return APP


def _reported(
    state: State, event: k.MembershipChanged | k.EpochCompleted, record: Record
) -> tuple[App, Generation] | tuple[None, None]:
    """Note that the present generation works, if a node of its says so."""
    app = state.apps.get(event.app)
    generation = app.generations.get(event.generation) if app else None
    if app is None or generation is None or generation.number != app.generation or generation.failed or app.ended:
        return None, None
    who = subjects.who_of(record.subject)
    if not generation.released or not any(
        subjects.token(container.node) == who for container in generation.all_containers()
    ):
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
    # A newcomer that ended before it trained becomes a member that has exited: the time of a whole membership ends here.
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
    if event.fault in ("open", "node") and not any(
        container.node == event.node for container in current.containers.values()
    ):
        return None
    before, after = len(current.containers), len(current.planned)
    if after <= before or any(slot in current.containers for slot in event.lost):
        return None
    return Held(current.number, after, before)


def members_lost(state: State, event: k.MembersLost) -> Effect:
    app, generation, stay = _announced(state, event)
    if app is None or generation is None or stay is None:
        return IGNORED
    cleared = note_failure(state, event)
    # A change that nobody has heard of was decided for members that are gone now.
    drops = generation.change is not None and not generation.change.released_at
    if drops:
        drop_change(state, app, generation)
    had_exited = generation.exited > 0
    note_speed(state, app, generation)
    if not had_exited:
        note_ran(state, app, generation, state.time)
    before, joining = generation.change, generation.change.newcomers if generation.change is not None else {}
    named = {placed.slot for placed in event.members}
    stay_after_all = [container for slot, container in sorted(generation.containers.items()) if slot in named]
    kept_rooms = [
        container.node for container in stay_after_all if before is not None and container.slot not in before.stay
    ]
    # Leavers go on until the others train without them, as in any change; who is lost is dismissed at once, and holds its
    # room until its end is on the log.
    keep = named.union(event.leavers).difference(event.lost)
    for slot in [slot for slot in generation.containers if slot not in keep]:
        _dismiss(generation, slot)
    newcomers = {slot: container for slot, container in joining.items() if slot in named}
    generation.leaving |= {
        s: container for s, container in joining.items() if s not in named and container.state != "exited"
    }
    adjust_counts(generation)
    generation.change, generation.announced, generation.accused = None, event.membership, []
    generation.rests_until = event.resize_at
    if generation.started_at and not generation.exited:
        generation.started_at = state.time
    if newcomers or any(slot not in named for slot in generation.containers):
        # Newcomers of a released change that survive still have to train, so the change goes on under the next number.
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
    voids = bool(kept_rooms)
    if voids:  # Others may have planned for the room that these members were to give up.
        void_plans(state, kept_rooms)
    app.changed_seq = state.seq
    mark_dirty(state)
    return Effect(app=True, node=True, nodes=cleared, everything=drops or voids, parts="touched")


def membership_committed(state: State, event: k.MembershipCommitted) -> Effect:
    app = state.apps.get(event.app)
    generation = app.generations.get(event.generation) if app else None
    if generation is None or generation.untold != event.membership:
        return ignored(state)
    generation.untold = 0
    return APP_PARTS


def live_resize_failed(state: State, event: k.LiveResizeFailed) -> bool:
    """Return whether the app is to be restarted as the event says."""
    in_force = _in_force(state, event)
    if in_force is None or event.restart.app != event.app or event.restart.to_generation != in_force[0].generation + 1:
        state.counters.ignored += 1
        return False
    app, generation = in_force
    app.missed_live = True
    dissolve(generation)
    return True


# --- decisions: commitments -------------------------------------------------------------------------------------------


def committed_memberships(app: App, generation: Generation) -> list[MembershipCommitted]:
    """Tell agents of a membership that trains."""
    if not generation.untold:
        return []
    return [MembershipCommitted(app=app.id, generation=generation.number, membership=generation.untold)]


# --- releases -----------------------------------------------------------------------------------------------------------


def to_release(state: State, app: App) -> LiveChange | None:
    """Return the change that waits only for room: no member failed, and every member is informed."""
    current = app.current
    change = current.change if current is not None and current.released else None
    if current is None or change is None or change.released_at or _dead(current):
        return None
    stays = (current.containers[slot].node for slot in change.stay if slot in current.containers)
    heard = all(node in state.nodes and state.nodes[node].condition == "up" for node in stays)
    return change if heard else None


def release_members(state: State, app: App, generation: Generation, change: LiveChange, now: int) -> MembersReleased:
    return MembersReleased(
        app=app.id,
        generation=generation.number,
        membership=change.membership,
        members=_placed(generation.planned.values()),
        newcomers=sorted(change.newcomers),
        leavers=sorted(slot for slot in generation.containers if slot not in change.stay),
        wait_s=max(0, now - change.decided_at) / SECOND,
        checkpoints=state.checkpoints,
    )


def _placed(containers: Iterable[Container]) -> list[Placed]:
    members = sorted(containers, key=lambda container: container.slot)
    return [Placed(slot=member.slot, node=member.node, address=member.address, port=member.port) for member in members]


# --- ends ---------------------------------------------------------------------------------------------------------------


def loss_of_members(state: State, app: App, generation: Generation, now: int) -> MembersLost | AppFailed | None:
    """Return the facts that follow from members that ended without a request, if the app can continue without them;
    None if there are none, or too few members are left."""
    dead = _dead(generation)
    if app.spec.elastic != "live" or not dead or not generation.started_at:
        return None
    joining = not any(slot in generation.containers for slot in dead)
    least = max(1, app.n_min)
    remaining = _whole_gangs(
        app,
        [container for container in _target(generation) if container.slot not in dead and container.state != "exited"],
    )
    if _training(generation, remaining) < least and joining:
        # A move whose new members died: no member has left yet, so the members stay as they are.
        remaining = _whole_gangs(
            app, [container for _, container in sorted(generation.containers.items()) if container.state != "exited"]
        )
    if _training(generation, remaining) < least:
        return None
    slots = {container.slot for container in remaining}
    loss = _fault(state, generation)
    follows = failures.consequence(state, app, generation, loss, now)
    if isinstance(follows, AppFailed) and not joining:
        return follows
    leave = (
        s
        for s, container in generation.containers.items()
        if s not in slots and s not in dead and container.state != "exited"
    )
    return MembersLost(
        app=app.id,
        generation=generation.number,
        membership=generation.announced + 1,
        members=_placed(remaining),
        lost=dead,
        leavers=sorted(leave),
        reason=loss.reason,
        failure=loss.failure,
        node=loss.node,
        fault=follows.fault,
        **_cost(app, follows, now, joining=joining),
    )


def _training(generation: Generation, remaining: list[Container]) -> int:
    """How many of these are members that run."""
    return sum(container.slot in generation.containers and container.state == "running" for container in remaining)


def _cost(app: App, follows: GenerationFailed | AppFailed, now: int, *, joining: bool) -> dict[str, Any]:
    """Return the cost of the failure.  Newcomers that never joined cost no retry, and never end an app whose members
    train: the app stays at the size that works (`dorm.core.sizes`)."""
    if isinstance(follows, AppFailed) or joining:
        return {"counted": False, "resize_at": now + int(app.spec.retries.longest_s * SECOND)}
    return {
        "counted": follows.counted,
        "port": follows.port,
        "retries": follows.retries,
        "limit": follows.limit,
        "anew": follows.anew,
        "resize_at": follows.retry_at,
    }


def _dead(generation: Generation) -> list[int]:
    """Slots of members, and of newcomers that were released, that ended without being done, or are gone for their peers."""
    dead = {*generation.accused, *(container.slot for container in failures.ended_badly(generation))}
    return sorted(dead)


def _target(generation: Generation) -> list[Container]:
    """The membership that was announced last."""
    released = generation.change is not None and generation.change.released_at
    members = generation.planned if released else generation.containers
    return [container for _, container in sorted(members.items())]


def _whole_gangs(app: App, members: list[Container]) -> list[Container]:
    """Of each node, as many as are whole gangs, lowest slots first."""
    gang = max(app.spec.gang, 1)
    by_node: dict[str, list[Container]] = {}
    for member in members:
        by_node.setdefault(member.node, []).append(member)
    return [container for there in by_node.values() for container in there[: len(there) - len(there) % gang]]


def fault(state: State, app: App, generation: Generation, now: int) -> Fault | None:
    """Return the fault that fails the whole generation."""
    dead = _dead(generation) if app.spec.elastic == "live" else []
    return _fault(state, generation) if dead else failures.fault(state, app, generation, now)


def _fault(state: State, generation: Generation) -> Fault:
    ended = failures.ended_badly(generation)
    if ended and not (generation.accused and all(ended_member.follows_another for ended_member in ended)):
        return failures.fault_of(state, generation, ended)
    slot = generation.accused[0]
    container = generation.containers[slot]
    node = state.nodes.get(container.node)
    heard = node is not None and node.condition == "up"
    reason = f"slot {slot} on {container.node} does not answer its peers"
    ran_s = max(0, state.time - container.started_at) / SECOND
    return Fault("stalled" if heard else "lost", reason, state.time, node=container.node, ran_s=ran_s)


# --- deadlines ----------------------------------------------------------------------------------------------------------


def missed_deadline(state: State, app: App, generation: Generation, now: int) -> LiveResizeFailed | None:
    """Return the restart of an app whose announced membership does not train by now."""
    due, change = deadlines.live_due_at(state, app), generation.change
    if due is None or due > now or change is None or generation is not app.current:
        return None
    from dorm.core.placement import restarted  # It imports the policies' arithmetic, which no fold needs.

    target = [member for member in _target(generation) if member.state != "exited" and _usable(state, member)]
    remaining = _whole_gangs(app, target)
    given = (
        restarted(state, app, [(member.slot, member.node) for member in remaining])
        if len(remaining) >= app.n_min
        else None
    )
    placement, master_port = given or ([], 0)
    limit = app.spec.deadlines.live
    allowed = limit if isinstance(limit, str) else f"{limit:g} s"
    return LiveResizeFailed(
        app=app.id,
        generation=generation.number,
        membership=change.membership,
        reason=f"membership {change.membership} did not train within {allowed} of its announcement",
        restart=Resize(
            app=app.id,
            from_generation=generation.number,
            to_generation=generation.number + 1,
            placement=placement,
            adjustment="restart" if placement else "stop",
            master_port=master_port,
            why="missed_deadline",
        ),
    )


def _usable(state: State, container: Container) -> bool:
    node = state.nodes.get(container.node)
    return node is not None and node.usable
