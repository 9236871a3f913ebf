"""The next round: `decide(state, now, allocate)` returns the facts that follow from a state.

Pure, so an audit can compute them again and compare.  Answers to clients, ends, failures and releases come at once; the
allocation, which is expensive, only when `allocate` is set and nothing else is due (the shell requests it after the
quiet time and at `timing.next_deadline`; facts published now are folded first).

A release is the one fact that lets containers run, so it has the strictest rule: room and ports have to be certainly
free (`_surely_free`).  Whatever may still run counts: members of earlier generations, members that leave, containers on
silent nodes, all by what they were started with.  Releases go by the order of their decisions, and an app about which
the same round says something else is not released in it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dorm.core import deadlines, failures, faults, live, revisions
from dorm.core.admission import LiveApps, answer
from dorm.core.allocation import allocate_now
from dorm.core.app import name_key
from dorm.core.gates import broken, closed, due_end
from dorm.core.placement import all_ports, held_ports
from dorm.core.round_size import MOST_NAMED, first_that_fit, size
from events.kinds import (
    AppAccepted,
    AppCancelled,
    AppCompleted,
    AppFailed,
    AppKilled,
    AppRestarted,
    AppRevised,
    Event,
    GenerationFailed,
    GenerationReleased,
    LiveResizeFailed,
    MembersLost,
    RecordsRefused,
    RefusedRecord,
)
from events.limits import LARGEST_FACTS
from events.quantities import SECOND
from events.spec import LARGEST_SPEC

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from dorm.core.state import App, Container, Generation, LiveChange, State, Submission

_ENDS = (
    AppCancelled
    | AppCompleted
    | AppFailed
    | GenerationFailed
    | MembersLost
    | LiveResizeFailed
    | AppRevised
    | AppRestarted
)
"""Facts about an app after which none of its containers is released in the same round."""
MOST_ANSWERS = 1000
LARGEST_ANSWERS = LARGEST_FACTS // 2
"""Bytes of answers that one round carries: a flood of submissions must not delay ends and releases."""


class Decision(msgspec.Struct, frozen=True):
    """Facts to publish as one round; `allocated` is set if the allocation was computed (it may have changed nothing)."""

    facts: list[Any]
    allocated: bool


def decide(state: State, now: int, *, allocate: bool) -> Decision:
    """Return the next round's facts.  `now` (UTC ns) is the `at` of that round.  Does not change the state."""
    facts: list[Event] = [
        *_answers(state),
        *_refused(state),
        *_ends_and_failures(state, now),
        *faults.facts(state, now),
    ]
    ended = {fact.app for fact in facts if isinstance(fact, _ENDS)}
    facts += _releases(state, now, ended)
    if facts or not allocate:
        return Decision(first_that_fit(facts), allocated=False)
    return Decision(allocate_now(state, now), allocated=True)


def _answers(state: State) -> list[Event]:
    """Return answers in order of arrival, as many as certainly fit into one message; the rest come in the next round.
    If more wait than fit, senders take turns: a sender that floods the log delays only its own submissions."""
    waiting = sorted(state.submissions.values(), key=_arrival)
    count = _fitting(waiting)
    if count < len(waiting):
        waiting = _in_turn(waiting)
        count = _fitting(waiting)
    while True:
        facts = _answers_to(state, sorted(waiting[:count], key=_arrival))
        sizes = {id: size(fact) for id, fact in facts.items()}
        if count <= 1 or sum(sizes.values()) <= LARGEST_ANSWERS:
            return list(facts.values())
        # Answers can be larger than their submissions, by a spec's defaults and its encoding.
        waiting = _in_turn(waiting)
        count = _first(count - 1, (sizes.get(submission.id, 0) for submission in waiting))


def _refused(state: State) -> list[Event]:
    """Report the records whose authors may not publish them: only the fold knows that they were refused."""
    known = state.known
    if known is None or not known.untold:
        return []
    untold = known.unreported_refusals()
    if not untold:  # A round has stated more than there was.
        return []
    records = [
        RefusedRecord(
            seq=note.seq,
            who=note.who,
            of=note.kind,
            about=note.about,
            code=note.code,
            reason=note.reason,
        )
        for note in untold
    ]
    return [RecordsRefused(records=records, upto=untold[-1].seq, omitted=known.untold - len(untold))]


def _answers_to(state: State, submissions: Sequence[Submission]) -> dict[str, Event]:
    facts: dict[str, Event] = {}
    taken, live = dict[str, str](), LiveApps(state)
    for submission in submissions:
        request = submission.asked
        if request is not None and not submission.refused:
            facts[submission.id] = revisions.answer_request(state, submission, request, taken, live)
            continue
        fact = answer(state, submission, taken, live)
        if isinstance(fact, AppAccepted):
            taken[name_key(fact.spec.name, fact.submission)] = fact.app
        facts[submission.id] = fact
    return facts


def _in_turn(waiting: Sequence[Submission]) -> list[Submission]:
    """Return the first of each sender, then the second of each, and so on."""
    before = Counter[str]()
    turns = []
    for submission in sorted(waiting, key=_arrival):
        turns.append((before[submission.who], submission))
        before[submission.who] += 1
    return [submission for _, submission in sorted(turns, key=lambda turn: (turn[0], _arrival(turn[1])))]


def _arrival(submission: Submission) -> tuple[int, str]:
    return submission.seq, submission.id


def _fitting(submissions: Sequence[Submission]) -> int:
    """Return how many of the first ones fit into one message, by their own size."""
    return _first(
        MOST_ANSWERS, (submission.size if submission.size <= LARGEST_SPEC else 0 for submission in submissions)
    )


def _first(most: int, sizes: Iterable[int]) -> int:
    """Return how many of the first ones fit, at least one if there is any, and at most `most`."""
    room = LARGEST_ANSWERS
    count = 0
    for size_of_next in sizes:
        room -= size_of_next
        if count >= most or (room < 0 and count):
            break
        count += 1
    return count


def _ends_and_failures(state: State, now: int) -> list[Event]:
    facts: list[Event] = []
    # Runs after every record, and most apps have not changed: a cheap check filters them.
    for app in sorted(filter(_may_have_news, state.apps.values()), key=lambda app: (app.seq, app.id)):
        if app.cancel_requested and not app.ended:
            facts.append(AppCancelled(app=app.id, generation=app.generation, reason=app.cancel_reason))
        if app.kill == "requested":
            facts.append(AppKilled(app=app.id, generation=app.generation))
        if app.cancel_requested or app.ended:
            continue
        ran = max((g for g in app.generations.values() if g.released), key=lambda g: g.number, default=None)
        end = due_end(app, now)
        if ran is None:
            facts += [end] if end is not None else []
            continue
        if all(failures.done(container) for container in ran.containers.values()) and not failures.unproven(app, ran):
            facts.append(AppCompleted(app=app.id, generation=ran.number))
        elif end is not None:
            facts.append(end)
        elif ran.number == app.generation and not ran.failed:
            facts += live.committed_memberships(app, ran)
            facts += _failures(state, app, ran, now)
    return facts


def _failures(state: State, app: App, generation: Generation, now: int) -> list[Event]:
    known_at = failures.cause_due_at(state, app)
    if known_at is not None and now < known_at:
        return []
    lost = live.loss_of_members(state, app, generation, now)
    if lost is not None:
        return [lost]
    fault = live.fault(state, app, generation, now)
    if fault is not None:
        return [failures.consequence(state, app, generation, fault, now)]
    missed = live.missed_deadline(state, app, generation, now)
    return [missed] if missed is not None else []


def _may_have_news(app: App) -> bool:
    """Return whether the app may have ended or failed: containers exited, it never had any, or it may have missed a
    deadline."""
    if app.ended:
        return app.kill == "requested"
    if app.cancel_requested or app.run_time is not None or broken(app) is not None:
        return True
    for generation in app.generations.values():
        if generation.exited or not generation.containers or deadlines.may_have_one(app, generation):
            return True
        if generation.untold or generation.accused:
            return True
    return False


# --- releases -----------------------------------------------------------------------------------------------------------


class _Candidate(NamedTuple):
    """Containers that wait for room: of a generation, or the newcomers of a live adjustment."""

    app: App
    generation: Generation
    decided_seq: int
    containers: list[Container]
    ports: list[tuple[str, int]]
    change: LiveChange | None


def _releases(state: State, now: int, ended: set[str]) -> list[Event]:
    """Release, in order of decision, generations and new members that certainly have free room and ports: generations
    whose predecessors have certainly ended, and new members of live adjustments."""
    candidates = []
    for app in state.apps.values():
        if app.ended or app.id in ended or app.current is None or closed(app, now):
            continue
        candidate = _candidate(state, app, app.current)
        if candidate is not None:
            candidates.append(candidate)
    if not candidates:
        return []
    free = _surely_free(state, {c.node for candidate in candidates for c in candidate.containers})
    return [
        _release(state, candidate.app, candidate.generation, now)
        if candidate.change is None
        else live.release_members(state, candidate.app, candidate.generation, candidate.change, now)
        for candidate in sorted(candidates, key=lambda c: (c.decided_seq, c.app.seq, c.app.id))
        if _take_room(state, free, candidate)
    ]


def _candidate(state: State, app: App, current: Generation) -> _Candidate | None:
    if current.released:
        change = live.to_release(state, app)
        if change is None:
            return None
        joining = list(change.newcomers.values())
        ports = [(newcomer.address, newcomer.port) for newcomer in joining]
        return _Candidate(app, current, change.decided_seq, joining, ports, change)
    # Two generations of one app never run at once: both would write the same checkpoints.
    if not all(g.ended for number, g in app.generations.items() if number < current.number):
        return None
    containers = list(current.containers.values())
    return _Candidate(app, current, current.decided_seq, containers, list(all_ports(current)), None)


class _Free(msgspec.Struct):
    """Room and ports that are certainly free."""

    room: dict[str, dict[str, int]]
    """Free room by node."""
    held: dict[tuple[str, int], None]
    """Address and port of each port that is not free."""


def _surely_free(state: State, nodes: Collection[str]) -> _Free:
    """Return the capacity of these nodes less everything that may still run."""
    free = {node.id: dict(node.capacity) for node in state.nodes.values() if node.id in nodes}
    held: dict[tuple[str, int], None] = {}
    for app in state.apps.values():
        for generation in app.generations.values():
            if generation.ended:
                continue
            # Also of ended and cancelled apps: an end on the log of the app is not the end of its containers.
            held.update(dict.fromkeys(held_ports(generation)))
            for container in generation.all_containers():
                if container.state != "exited" and container.node in free:
                    room = free[container.node]
                    for name, amount in app.needs(generation).items():
                        room[name] = room.get(name, 0) - amount
    return _Free(free, held)


def _take_room(state: State, surely: _Free, wanted: _Candidate) -> bool:
    counts, free, app = Counter(container.node for container in wanted.containers), surely.room, wanted.app
    ports = dict.fromkeys(wanted.ports)
    if any(port in surely.held for port in ports):
        return False
    for node, count in counts.items():
        # A silent node may be back in a moment; to release there would start a deadline that nobody can keep.
        if node not in state.nodes or state.nodes[node].condition != "up":
            return False
        if any(free[node].get(name, 0) < amount * count for name, amount in app.demand.items()):
            return False
    # Later releases of the same round see what is left, so two of them never take the same room.
    for node, count in counts.items():
        for name, amount in app.demand.items():
            free[node][name] -= amount * count
    surely.held.update(ports)
    return True


def _release(state: State, app: App, generation: Generation, now: int) -> GenerationReleased:
    earlier = [g for number, g in sorted(app.generations.items()) if number < generation.number]
    previous = next((g for g in reversed(earlier) if g.released), None)
    stopped_at = max(previous.stopped_at, generation.decided_at) if previous else generation.decided_at
    began = generation.stop_began(stopped_at)
    checkpoint = None if app.starts_fresh(generation) else app.checkpoint
    by_lease = {c.node for c in previous.containers.values() if c.reason == "lost"} if previous else ()
    return GenerationReleased(
        app=app.id,
        generation=generation.number,
        previous=previous.number if previous else 0,
        resume=checkpoint is not None,
        checkpoint=checkpoint,
        lost_steps=max(0, app.step - (checkpoint or 0)) if previous else 0,
        killed=sum(container.killed for container in previous.containers.values()) if previous else 0,
        stop_s=(stopped_at - began) / SECOND,
        wait_s=max(0, now - stopped_at) / SECOND,
        lease_ended=sorted(by_lease)[:MOST_NAMED],
        checkpoints=state.checkpoints,
        prepare_s=(began - generation.decided_at) / SECOND,
    )
