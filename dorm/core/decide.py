"""What follows from a state: `decide(state, now, allocate)` gives the facts of the master's next round.

Pure, so that an audit can ask again and compare.  Answers to clients, ends, failures and releases come at once; the
allocation, which is the dear part, only when `allocate` is set and nothing else was to be said (the shell asks after the
quiet time and at `timing.next_deadline`; what was said now is folded first).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.admission import answer
from dorm.core.allocation import allocate_now
from events.kinds import (
    AppAccepted,
    AppCancelled,
    AppCompleted,
    AppFailed,
    Event,
    GenerationFailed,
    GenerationReleased,
)
from events.quantities import duration
from events.spec import LARGEST_SPEC

if TYPE_CHECKING:
    from collections.abc import Collection

    from dorm.core.state import App, Container, Generation, State

SECOND = 1_000_000_000
MOST_ANSWERS = 1000
LARGEST_ANSWERS = 2 * 2**20
"""Bytes of specs that one round carries."""
MOST_PORTS = 10
"""Taken ports that are excused; an app that says so of every port it is given is at fault itself."""


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
    size = 0
    for submission in sorted(state.submissions.values(), key=lambda s: (s.seq, s.id)):
        size += submission.size if submission.size <= LARGEST_SPEC else 0
        if len(facts) >= MOST_ANSWERS or size > LARGEST_ANSWERS:
            break
        said = answer(state, submission, taken)
        if isinstance(said, AppAccepted):
            taken[said.spec.name] = said.app
        facts.append(said)
    return facts


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
        if all(_done(container) for container in ran.containers.values()):
            facts.append(AppCompleted(app=app.id, generation=ran.number))
        elif ran.number == app.generation and not ran.failed:
            failed = [c for c in ran.containers.values() if c.state == "exited" and not _done(c)]
            if failed:
                facts.append(_failure(app, ran, failed, now))
    return facts


def _may_have_news(app: App) -> bool:
    """Whether it may have ended or failed: only what has exited, or was empty from the begin, can tell."""
    if app.ended:
        return False
    if app.cancel_requested:
        return True
    for generation in app.generations.values():  # noqa: SIM110 (a generator takes three times as long)
        if generation.exited or not generation.containers:
            return True
    return False


def _done(container: Container) -> bool:
    """Exit code 0 means done only where nobody had asked it to stop."""
    return container.state == "exited" and container.exit_code == 0 and not container.asked


def _failure(app: App, generation: Generation, failed: list[Container], now: int) -> AppFailed | GenerationFailed:
    """The app is tried again while it has retries left; what was not its own fault costs none.

    The first container that ended decides whose fault it was: the others of the generation only lost their peer.
    """
    first = min(failed, key=lambda c: (c.exited_at, c.slot))
    excused = first.asked or first.reason == "lost" or (first.reason == "port" and app.port_failures < MOST_PORTS)
    retries = app.spec.retries
    reason = _why(first)
    if not excused and app.failures >= retries.limit:
        after = f" (after {retries.limit} retries)" if retries.limit else ""
        codes = {str(c.slot): c.exit_code for c in sorted(generation.containers.values(), key=lambda c: c.slot)}
        return AppFailed(app=app.id, generation=generation.number, reason=reason + after, exit_codes=codes)
    pause = min(duration(retries.backoff) * 2.0 ** min(app.failures, 30), duration(retries.longest))
    return GenerationFailed(
        app=app.id,
        generation=generation.number,
        reason=reason,
        counted=not excused,
        port=first.reason == "port",
        retry_at=now + int(pause * SECOND),
    )


def _why(container: Container) -> str:
    where = f"slot {container.slot} on {container.node}"
    if container.reason == "out_of_memory":
        return f"{where} ran out of memory"
    if container.reason == "exit" and container.exit_code is not None:
        code = container.exit_code
        killed = f" (killed by signal {code - 128})" if 128 < code < 160 else ""
        return f"{where} ended with exit code {code}{killed}" + (f": {container.message}" if container.message else "")
    return f"{where}: {container.message or container.reason}"


# --- releases -----------------------------------------------------------------------------------------------------------


def _releases(state: State, now: int, ended: set[str]) -> list[Event]:
    """Generations whose predecessors have surely ended and whose room is surely free, first decided first."""
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


def _surely_free(state: State, nodes: Collection[str]) -> dict[str, dict[str, int]]:
    """Capacity less whatever may still run, of these nodes."""
    free = {node.id: dict(node.capacity) for node in state.nodes.values() if node.id in nodes}
    for app in state.apps.values():
        for generation in app.generations.values():
            if generation.ended:
                continue
            for container in generation.containers.values():
                if container.state != "exited" and container.node in free:
                    room = free[container.node]
                    for name, amount in app.demand.items():
                        room[name] = room.get(name, 0) - amount
    return free


def _take_room(state: State, free: dict[str, dict[str, int]], app: App, generation: Generation) -> bool:
    counts = generation.by_node()
    for node, count in counts.items():
        if node not in state.nodes or state.nodes[node].condition != "up":
            return False
        if any(free[node].get(name, 0) < amount * count for name, amount in app.demand.items()):
            return False
    for node, count in counts.items():
        for name, amount in app.demand.items():
            free[node][name] -= amount * count
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
        stop_s=(stopped_at - generation.decided_at) / SECOND,
        wait_s=max(0, now - stopped_at) / SECOND,
        lease_ended=sorted({c.node for c in previous.containers.values() if c.reason == "lost"} if previous else []),
    )
