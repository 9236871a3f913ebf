"""What follows from a state: `decide(state, now, allocate)` gives the facts of the master's next round.

Pure, so that an audit can ask again and compare.  Answers to clients, ends, failures and releases come at once; the
allocation, which is the dear part, only when `allocate` is set and nothing else was to be said (the shell asks after the
quiet time and at `timing.next_deadline`; what was said now is folded first).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core import deadlines, failures
from dorm.core.admission import answer
from dorm.core.allocation import allocate_now
from dorm.core.placement import all_ports, held_ports
from events.kinds import (
    AppAccepted,
    AppCancelled,
    AppCompleted,
    AppFailed,
    Event,
    GenerationFailed,
    GenerationReleased,
)
from events.spec import LARGEST_SPEC

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from dorm.core.state import App, Generation, State, Submission

SECOND = 1_000_000_000
MOST_ANSWERS = 1000
LARGEST_ANSWERS = 2 * 2**20
"""Bytes of specs that one round carries."""


class Decision(msgspec.Struct, frozen=True):
    """Facts to publish as one round; `allocated` says that the allocation was computed (and may have changed nothing)."""

    facts: list[Any]
    allocated: bool


def decide(state: State, now: int, *, allocate: bool) -> Decision:
    """The next round's facts.  `now` (UTC ns) is the `at` of that round.  Does not change the state."""
    facts: list[Event] = [*_answers(state), *_ends_and_failures(state, now)]
    ended = {fact.app for fact in facts if isinstance(fact, AppCancelled | AppCompleted | AppFailed | GenerationFailed)}
    facts += _releases(state, now, ended)
    if facts or not allocate:
        return Decision(facts, allocated=False)
    return Decision(allocate_now(state, now), allocated=True)


def _answers(state: State) -> list[Event]:
    """Answers in order of arrival, as many as surely fit into one message; the rest come in the next round."""
    facts: list[Event] = []
    taken: dict[str, str] = {}
    for submission in _whose_turn_it_is(state):
        said = answer(state, submission, taken)
        if isinstance(said, AppAccepted):
            taken[said.spec.name] = said.app
        facts.append(said)
    return facts


def _whose_turn_it_is(state: State) -> list[Submission]:
    """Those to be answered now.  Where there are more than fit, senders take turns, each in the order of arrival: whoever
    floods the log waits for himself."""
    waiting = sorted(state.submissions.values(), key=_arrival)
    if _fitting(waiting) == len(waiting):
        return waiting
    before = Counter[str]()
    turns = []
    for submission in waiting:
        turns.append((before[submission.who], submission))
        before[submission.who] += 1
    in_turn = [submission for _, submission in sorted(turns, key=lambda turn: (turn[0], _arrival(turn[1])))]
    return sorted(in_turn[: _fitting(in_turn)], key=_arrival)


def _arrival(submission: Submission) -> tuple[int, str]:
    return submission.seq, submission.id


def _fitting(submissions: Sequence[Submission]) -> int:
    """How many of the first ones surely fit into one message."""
    size = 0
    for count, submission in enumerate(submissions):
        size += submission.size if submission.size <= LARGEST_SPEC else 0
        if count >= MOST_ANSWERS or size > LARGEST_ANSWERS:
            return count
    return len(submissions)


def _ends_and_failures(state: State, now: int) -> list[Event]:
    facts: list[Event] = []
    # Asked after every record, and of most apps there is no news: no more than a look at each.
    for app in sorted(filter(_may_have_news, state.apps.values()), key=lambda app: (app.seq, app.id)):
        if app.cancel_requested:
            facts.append(AppCancelled(app=app.id, generation=app.generation, reason=app.cancel_reason))
            continue
        ran = max((g for g in app.generations.values() if g.released), key=lambda g: g.number, default=None)
        if ran is None:
            continue
        if all(failures.done(container) for container in ran.containers.values()):
            facts.append(AppCompleted(app=app.id, generation=ran.number))
        elif ran.number == app.generation and not ran.failed:
            found = failures.fault(state, app, ran, now)
            if found is not None:
                facts.append(failures.consequence(app, ran, found, now))
    return facts


def _may_have_news(app: App) -> bool:
    """Whether it may have ended or failed: what has exited, was empty from the begin, or may have missed a deadline."""
    if app.ended:
        return False
    if app.cancel_requested:
        return True
    for generation in app.generations.values():
        if generation.exited or not generation.containers or deadlines.may_have_one(app, generation):
            return True
    return False


# --- releases -----------------------------------------------------------------------------------------------------------


def _releases(state: State, now: int, ended: set[str]) -> list[Event]:
    """Generations whose predecessors have surely ended and whose room and ports are surely free, first decided first."""
    candidates = []
    for app in state.apps.values():
        generation = app.generations.get(app.generation)
        if app.ended or generation is None or generation.released or app.current is None or app.id in ended:
            continue
        earlier = [g for number, g in sorted(app.generations.items()) if number < generation.number]
        if all(g.ended for g in earlier):
            candidates.append((app, generation, earlier))
    if not candidates:
        return []
    free = _surely_free(state, {c.node for _, generation, _ in candidates for c in generation.containers.values()})
    return [
        _release(app, generation, earlier, now)
        for app, generation, earlier in sorted(candidates, key=lambda c: (c[1].decided_seq, c[0].seq, c[0].id))
        if _take_room(state, free, app, generation)
    ]


class _Free(msgspec.Struct):
    """What is surely free."""

    room: dict[str, dict[str, int]]
    """By node."""
    held: dict[tuple[str, int], None]
    """Address and port: what is not free."""


def _surely_free(state: State, nodes: Collection[str]) -> _Free:
    """Capacity less whatever may still run, of these nodes."""
    free = {node.id: dict(node.capacity) for node in state.nodes.values() if node.id in nodes}
    held: dict[tuple[str, int], None] = {}
    for app in state.apps.values():
        for generation in app.generations.values():
            if generation.ended:
                continue
            held.update(dict.fromkeys(held_ports(generation)))
            for container in generation.containers.values():
                if container.state != "exited" and container.node in free:
                    room = free[container.node]
                    for name, amount in app.demand.items():
                        room[name] = room.get(name, 0) - amount
    return _Free(free, held)


def _take_room(state: State, surely: _Free, app: App, generation: Generation) -> bool:
    counts, free = generation.by_node(), surely.room
    ports = dict.fromkeys(all_ports(generation))
    if any(port in surely.held for port in ports):
        return False
    for node, count in counts.items():
        if node not in state.nodes or state.nodes[node].condition != "up":
            return False
        if any(free[node].get(name, 0) < amount * count for name, amount in app.demand.items()):
            return False
    for node, count in counts.items():
        for name, amount in app.demand.items():
            free[node][name] -= amount * count
    surely.held.update(ports)
    return True


def _release(app: App, generation: Generation, earlier: list[Generation], now: int) -> GenerationReleased:
    previous = next((g for g in reversed(earlier) if g.released), None)
    stopped_at = max(previous.stopped_at, generation.decided_at) if previous else generation.decided_at
    resume = app.checkpoint is not None
    return GenerationReleased(
        app=app.id,
        generation=generation.number,
        previous=previous.number if previous else 0,
        resume=resume,
        checkpoint=app.checkpoint,
        lost_steps=max(0, app.step - (app.checkpoint or 0)) if previous else 0,
        killed=sum(container.killed for container in previous.containers.values()) if previous else 0,
        stop_s=(stopped_at - generation.decided_at) / SECOND,
        wait_s=max(0, now - stopped_at) / SECOND,
        lease_ended=sorted({c.node for c in previous.containers.values() if c.reason == "lost"} if previous else []),
    )
