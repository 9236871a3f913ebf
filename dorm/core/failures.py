"""Whose fault a failed generation is, and the consequence: a retry after a pause, or the end of its app.

    excused   a node was lost; a container was stopped without a request; its checkpoints were not found, or its node could
              not start it for a reason of its own (at most `MOST_UNMOUNTED` failures in a row); a port was taken (at most
              `MOST_PORTS` times): costs no retry
    counted   against the cause's own limit (`retries.out_of_memory` of the spec, …), or with all others against `limit`
    done      all containers ended with exit code 0 and none had been asked to stop; but a generation that started from a
              doubtful checkpoint, of an app that reports its work, has to report some (`unproven`)
    final     an exit code of `retries.fatal_exit_codes`, or no retry left: the app has failed; and what no retry changes: a
              command or a spec that can't be started, of an app that has never worked, unless its spec sets a limit for that

Each failure in a row doubles the pause before the next retry, whatever its cause: a node that fails everything is not
tried every second, and no spec can ask for less than `_pause_s` gives.  Once an app has run well for `retries.reset`,
all counts start again at zero, so a few failures over a week do not end a job while a crash loop still ends.
Failures that a retry hardly changes (an image that can't be pulled, a command that is not found) are retried after
`CERTAIN_S` at the earliest.

The first cause counts.  A container whose own output says that it lost a peer, and a member that its peers report as gone,
are consequences of an end that is perhaps not on the log yet: the culprit still writes a profile, or its agent has yet to
read its output.  Nothing follows from such signs before that end is known, for at most as long as the silence of its node
takes to be noticed (`cause_due_at`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec

from dorm.core import deadlines, faults
from dorm.core.faults import Fault
from dorm.core.round_size import MOST_NAMED
from dorm.core.sizes import ran_well
from events.kinds import AppFailed, Failure, GenerationFailed, MembersLost
from events.quantities import SECOND
from events.spec import OWN_LIMITS
from events.spec.variables import through_a_script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.core.state import App, Container, Generation, State
    from events.spec import Retries

MOST_PORTS = 10
"""Excused failures by taken ports; an app that reports every port as taken is itself at fault."""
MOST_UNMOUNTED = 10
"""Failures in a row within which missing checkpoints are excused.  A node that lost its mount gets no more containers, so an
app that fails for longer has lost its own folder, and must not hold its room by retrying forever."""
LEAST_BACKOFF_S = 0.1
"""Seconds, doubled with each failure in a row: the shortest pauses from the second one on."""
LONGEST_LEAST_S = 10.0
"""Seconds up to which it doubles."""
CERTAIN = ("command", "spec")
"""Causes that a retry changes only if another node differs."""
CERTAIN_S = 10.0
"""Seconds, doubled with each failure in a row: a mount or a registry may come back before all retries are used up."""
NOT_FOUND = (126, 127)
"""Exit codes with which a shell ends whose command can't be run or is not found."""
SHARED = "limit"
"""The limit for failures without a limit of their own."""


def done(container: Container) -> bool:
    """Return whether the container is done: exit code 0 counts only if no stop was requested."""
    return container.state == "exited" and container.exit_code == 0 and not container.asked


def unproven(app: App, generation: Generation) -> bool:
    """Return whether all its containers are done, but it started from a doubtful checkpoint and has reported no work since:
    the exit code 0 may be that of a shell script (`bash run.sh`) whose program could not read an incomplete file.  A program
    that runs by itself is believed: it may have had nothing left to do."""
    doubted = app.doubt
    if doubted is None or generation.worked or not doubted.concerns(generation):
        return False
    if not through_a_script(app.spec.resume or app.spec.command):
        return False
    return all(done(container) for container in generation.containers.values())


def fault(state: State, app: App, generation: Generation, now: int) -> Fault | None:
    """Return the fault of the latest generation at `now` (UTC ns); None if there is none."""
    failed = [c for c in generation.containers.values() if c.state == "exited" and not done(c)]
    if failed:
        return _with_early_end(fault_of(state, generation, failed), generation)
    if unproven(app, generation):
        last = max(generation.containers.values(), key=lambda container: (container.exited_at, container.slot))
        reason = (
            f"slot {last.slot} on {last.node} ended with exit code 0 without a step after a doubtful checkpoint; see "
            f"`dorm checkpoints {app.name}`"
        )
        return Fault("exit", reason, last.exited_at, last.exit_code)
    missed = deadlines.missed(state, app, now)
    if missed is None:
        return None
    return Fault(missed.failure, missed.reason, missed.since, node=missed.node)


def fault_of(state: State, generation: Generation, failed: Sequence[Container]) -> Fault:
    """Return the fault of containers of a generation that ended and are not done: the first one's that did not end because it
    had lost another."""
    own = [container for container in failed if not container.follows_another]
    first = min(own or failed, key=lambda container: (container.exited_at, container.slot))
    ran_s = first.ran_ns / SECOND
    by_node = first.reason == "start" and not first.asked
    newcomer = first.slot not in generation.containers and not _has_member_on(generation, first.node)
    blamed = Fault(
        _failure_of(first), _why(first), first.exited_at, first.exit_code, first.node, ran_s, by_node, newcomer
    )
    if own or not (left := _left(generation, failed)):
        return blamed
    silent = [suspected for suspected in left if not _heard(state, suspected)]
    if silent:
        where = _named(silent)
        return Fault(
            "lost",
            f"{where} is silent with its node, and others lost it: {blamed.reason}",
            blamed.worked_until,
        )
    return msgspec.structs.replace(
        blamed, reason=f"{blamed.reason}; {_named(left)} has not ended, and may be what it lost"
    )


def _has_member_on(generation: Generation, node: str) -> bool:
    return any(member.node == node for member in generation.containers.values())


def _named(containers: Sequence[Container]) -> str:
    more = f" (or one of {len(containers) - 1} more)" if len(containers) > 1 else ""
    return f"slot {containers[0].slot} on {containers[0].node}{more}"


def _left(generation: Generation, failed: Sequence[Container]) -> list[Container]:
    """Return the containers whose end may explain those: if peers report some as gone, only these."""
    joining = generation.change.newcomers if generation.change is not None and generation.change.released_at else {}
    left = [
        container
        for _, container in sorted({**generation.containers, **joining}.items())
        if container.state != "exited"
    ]
    return [container for container in left if container.slot in generation.accused] or left


def _heard(state: State, container: Container) -> bool:
    node = state.nodes.get(container.node)
    return node is not None and node.condition == "up"


def cause_due_at(state: State, app: App) -> int | None:
    """Return until when (UTC ns) nothing follows from the failed containers of the app's latest generation, because the end of
    another may explain them; None if nothing is awaited.  Cheap: called on each app after each record."""
    generation = app.generations.get(app.generation)
    if generation is None or generation.failed or not generation.released or app.ended or app.cancel_requested:
        return None
    live = app.spec.elastic == "live"
    accused = generation.accused if live else []
    failed = ended_badly(generation) if generation.exited or (live and generation.change is not None) else []
    if not (failed or accused) or not all(container.follows_another for container in failed):
        return None
    left = _left(generation, failed)
    if not left or not all(_heard(state, container) for container in left):
        return None
    since = [container.exited_at for container in failed]
    if accused:
        since.append(generation.accused_at)
    return min(since) + int(deadlines.noticed_s(state) * SECOND)


def ended_badly(generation: Generation) -> list[Container]:
    """Return members, and newcomers that were released, that ended without being done."""
    joining = generation.change.newcomers if generation.change is not None else {}
    containers = [*generation.containers.values(), *joining.values()]
    return [container for container in containers if container.state == "exited" and not done(container)]


def _with_early_end(late: Fault, generation: Generation) -> Fault:
    """Name the first container that was done before the fault: the others may have failed for want of it."""
    early = [
        container
        for container in generation.containers.values()
        if done(container) and container.exited_at < late.worked_until
    ]
    if not early:
        return late
    first = min(early, key=lambda done_early: (done_early.exited_at, done_early.slot))
    seconds = (late.worked_until - first.exited_at) / SECOND
    more = f" (and {len(early) - 1} more)" if len(early) > 1 else ""
    text = f"{late.reason}; slot {first.slot} on {first.node}{more} had ended with exit code 0 {seconds:.1f} s before"
    return msgspec.structs.replace(late, reason=text)


def _failure_of(container: Container) -> Failure:
    if container.asked:
        return "stopped"
    return cast("Failure", container.reason)  # As in the exit event: its reasons are all causes of failures.


def consequence(state: State, app: App, generation: Generation, fault: Fault, now: int) -> AppFailed | GenerationFailed:
    """Return the fact that follows from a fault."""
    retries, failure = app.spec.retries, fault.failure
    afresh = ran_well(app, fault.worked_until)
    ports = 0 if afresh else app.port_failures
    in_a_row = 0 if afresh else app.failures_in_a_row
    judged = faults.verdict(state, app, generation, fault, now)
    if judged.fault == "open" and fault.by_node and in_a_row < MOST_UNMOUNTED:
        judged = faults.Verdict("node", "; that is the node's fault, and costs no retry")
    excused = (
        failure in ("stopped", "lost")
        or judged.fault == "node"
        or ((failure == "checkpoints" or fault.by_node) and in_a_row < MOST_UNMOUNTED)
        or (failure == "port" and ports < MOST_PORTS)
    )
    used = (0 if afresh else app.retries_used.get(counts_against(app, failure), 0)) + judged.open_before
    limit = _limit(app, failure)
    certain = _is_certain(app, fault)
    fatal = fault.exit_code in retries.fatal_exit_codes
    if not excused and (fatal or (judged.fault != "open" and (used >= limit or certain))):
        named = sorted(generation.containers.items())[:MOST_NAMED]
        codes = {str(slot): container.exit_code for slot, container in named}
        return AppFailed(
            app=app.id,
            generation=generation.number,
            reason=fault.reason + ("" if judged.fault == "open" else judged.why) + _no_more(app, fault, used),
            failure=failure,
            exit_codes=codes,
            node=fault.node,
            fault="app" if judged.fault == "open" else judged.fault,
        )
    elsewhere = judged.fault in ("open", "node")
    pause = _pause_s(retries, in_a_row, least_s=CERTAIN_S if _hardly_changes(fault) and not elsewhere else 0.0)
    counted = not excused and judged.fault != "open"
    return GenerationFailed(
        app=app.id,
        generation=generation.number,
        reason=fault.reason + judged.why,
        counted=counted,
        port=failure == "port",
        failure=failure,
        retries=used + 1 if counted else 0,
        limit=limit if counted else 0,
        anew=afresh,
        retry_at=now + int(pause * SECOND),
        node=fault.node,
        fault=judged.fault,
    )


def _is_certain(app: App, fault: Fault) -> bool:
    """Return whether each retry would end in the same way, and its owner did not ask for any."""
    return fault.failure in CERTAIN and not app.worked_with and counts_against(app, fault.failure) == SHARED


def _hardly_changes(fault: Fault) -> bool:
    return fault.failure in (*CERTAIN, "image") or fault.exit_code in NOT_FOUND


def _pause_s(retries: Retries, in_a_row: int, *, least_s: float = 0.0) -> float:
    """Return the pause before the next try, in seconds.  A spec may ask for none, and for a thousand retries: from the second
    failure in a row on, the floor keeps such an app from making the log grow and the master decide without pause."""
    doubled = 2.0 ** min(in_a_row, 30)
    floor = min(LEAST_BACKOFF_S * doubled, LONGEST_LEAST_S) if in_a_row else 0.0
    return max(floor, min(max(retries.backoff_s, least_s) * doubled, max(retries.longest_s, least_s)))


def is_interruption(event: GenerationFailed | MembersLost) -> bool:
    """Return whether nothing was wrong with the app: its node was lost, or it was stopped without a request.  A taken port is
    only the app's own claim, so it does not count; nor does a failure that may be the app's own."""
    return not event.counted and not event.port and event.fault != "open"


def counts_against(app: App, failure: str) -> str:
    """Return which limit a failure counts against: its own if the spec sets one."""
    own = failure in OWN_LIMITS and getattr(app.spec.retries, failure) is not None
    return failure if own else SHARED


def _limit(app: App, failure: str) -> int:
    return limit_of(app, counts_against(app, failure))


def limit_of(app: App, against: str) -> int:
    """Return the limit that `counts_against` names."""
    limit: int = getattr(app.spec.retries, against)
    return limit


def _no_more(app: App, fault: Fault, used: int) -> str:
    """Return why there is no retry, as the end of the reason."""
    if fault.exit_code in app.spec.retries.fatal_exit_codes:
        return f" (exit code {fault.exit_code} is final)"
    if _is_certain(app, fault):
        return " (a retry would end in the same way)"
    against = counts_against(app, fault.failure)
    limit = limit_of(app, against)
    of_its_own = "" if against == SHARED else f" for {against}"
    if limit:
        return f" ({used} of {limit} {'retry' if limit == 1 else 'retries'}{of_its_own} used up)"
    return f" (no retries{of_its_own})" if of_its_own else ""


def _why(container: Container) -> str:
    where = f"slot {container.slot} on {container.node}"
    if container.reason == "out_of_memory":
        return f"{where} ran out of memory"
    if container.reason == "exit" and container.exit_code is not None:
        code = container.exit_code
        killed = f" (killed by signal {code - 128})" if 128 < code < 160 else ""
        return f"{where} ended with exit code {code}{killed}" + (f": {container.message}" if container.message else "")
    return f"{where}: {container.message or container.reason}"
