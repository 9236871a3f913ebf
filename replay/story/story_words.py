"""Stories in words: the chapters of apps and nodes, live adjustments, and promises and failures of policies.

Each function takes what a teller found and returns a sentence or the end of one.  Timelines and lists of events use those on
policies too, so that the same fact reads alike everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dorm.core.delays import delay_words
from dorm.core.failures import SHARED, counts_against
from dorm.core.faults import failed_there
from dorm.core.generation import Delay
from dorm.core.progress import doubt_shown
from dorm.core.sizes import counts_at
from dorm.core.submissions import app_of_request
from events import kinds as k
from events.quantities import SECOND, humanize
from replay.words import begins_again, containers, failure_cost, moment, span

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dorm.core.state import App, Pause, State
    from replay.story.chapters import AppTotals, Changed, Chapter, Exit, Phases, Places, Took, Work


# --- live adjustments -------------------------------------------------------------------------------------------------

WHY = {
    "members_stay": "it trains on meanwhile",
    "no_member_stays": "by a restart, since no member of it would stay",
    "missed_deadline": "by a restart, since it missed the deadline of its last live resize",
}
"""Reasons by `Resize.why`."""


def slots(numbers: Sequence[int]) -> str:
    """`slot 3`, `slots 3, 4 and 2 more`."""
    shown = ", ".join(map(str, numbers[:4])) + (f" and {len(numbers) - 4} more" if len(numbers) > 4 else "")
    return f"slot{'' if len(numbers) == 1 else 's'} {shown}"


def members_released(fact: k.MembersReleased) -> str:
    parts = [f"membership {fact.membership} is announced"]
    if fact.newcomers:
        waited = f", after waiting {span(fact.wait_s)} for room" if fact.wait_s >= 0.05 else ""
        parts.append(f"{slots(fact.newcomers)} may start{waited}")
    if fact.leavers:
        parts.append(f"{slots(fact.leavers)} {'leaves' if len(fact.leavers) == 1 else 'leave'}")
    return "; ".join(parts)


def trains(app: App, event: k.MembershipChanged, at: int) -> str:
    """Describe a membership that trains; `at` is the log time (UTC ns)."""
    if event.change == "death":
        what = f"{slots(event.lost)} no longer answer{'s' if len(event.lost) == 1 else ''} its peers"
        step = "; the step in flight was repeated" if event.repeated else ""
        return f"{what}, and {containers(len(event.members))} went on at step {event.step}{_pause(event)}{step}"
    text = f"membership {event.membership} trains, with {containers(len(event.members))}, from step {event.step}"
    last = app.history[-1] if app.history else None
    if last is not None and last.live and last.started_at == at:
        text += f", {span((at - last.decided_at) / SECOND)} after the decision"
    return text + _pause(event)


def _pause(event: k.MembershipChanged) -> str:
    parts = [f"it paused for {event.pause_s * 1e3:.3g} ms"] if event.pause_s or event.change != "start" else []
    parts += [f"newcomers warmed up for {span(event.warm_up_s)}"] if event.warm_up_s else []
    parts += [f"{humanize('memory', event.bytes_moved)} moved"] if event.bytes_moved else []
    return "".join(f"; {part}" for part in parts)


def lost(fact: k.MembersLost) -> str:
    cost = failure_cost(fact.fault, f"retry {fact.retries} of {fact.limit}" if fact.counted else "")
    left = containers(len(fact.members))
    goes = "goes" if len(fact.members) == 1 else "go"
    return f"{slots(fact.lost)} lost: {fact.reason}; {left} {goes} on, as membership {fact.membership} ({cost})"


def resize_failed(fact: k.LiveResizeFailed) -> str:
    size = len(fact.restart.placement)
    then = f"restarted with {containers(size)}" if size else "stopped, and placed again"
    return f"{fact.reason}, so it is {then} instead"


# --- promises and failures of policies --------------------------------------------------------------------------------


def planned(event: k.AppPlanned) -> str:
    """Describe a plan: when it starts and ends, the most containers of a slot, worth and cost."""
    if not event.slots:
        return "its plan was withdrawn"
    first, last = event.slots[0], event.slots[-1]
    most = max(sum(slot.containers.values()) for slot in event.slots)
    slots = sum(1 for slot in event.slots if slot.containers)
    changes = f"in {slots} parts" if slots > 1 else "all the time"
    start = next((slot for slot in event.slots if slot.containers), first)
    begins = f"from {moment(start.at)} " if start.at > first.at else ""
    lasts = f" ({span((last.at - start.at) / SECOND)})"
    worth = f"worth {event.worth:.3g} at a cost of {event.cost:.3g}"
    return f"planned {begins}until {moment(last.at)}{lasts}: up to {containers(most)}, {changes}; {worth}"


def policy_failed(event: k.PolicyFailed) -> str:
    """Describe a policy that gave no usable answer, with its code."""
    reason = " ".join(event.reason.split())
    cut = reason if len(reason) <= 300 else reason[:299] + "…"
    return f"policy {event.policy} gave no usable answer, so every app keeps what it has: {cut} ({event.code})"


def is_first_failure(state: State, event: k.PolicyFailed) -> bool:
    """Return whether this is the first of equal failures in a row, by the state after it: idle ticks repeat them."""
    known = state.policy_failure
    return getattr(known, "since", 0) == state.time and getattr(known, "code", "") == event.code


# --- chapters ---------------------------------------------------------------------------------------------------------

SHOWN = 6
"""Nodes that are named at once; a chapter's fields name all."""
_TIMES = (
    "quiet_ms", "quiet_limit_ms", "idle_s", "node_grace_s", "node_lease_s", "suspect_within_s", "retention_s",
)  # fmt: skip


def short_name(app_id: str) -> str:
    """Return the name in an id, which is the name and a digest."""
    return app_id.rpartition("-")[0] or app_id


def on_nodes(places: Mapping[str, int]) -> str:
    """`node-1 (2), node-2 (1)`."""
    named = [f"{node} ({count})" for node, count in list(places.items())[:SHOWN]]
    left = len(places) - len(named)
    if left:
        rest = sum(list(places.values())[SHOWN:])
        named.append(f"{left} more node{'' if left == 1 else 's'} ({rest})")
    return ", ".join(named)


def listed(names: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def why(reason: str) -> str:
    """Return `: too slow`, '' without a reason.  The reason is free text, so it is cut to one line of bounded length."""
    line = " ".join(reason.split())
    return f": {line if len(line) <= 300 else line[:299] + '…'}" if line else ""


def accepted(app: App) -> str:
    weight = "" if app.weight == 1 else f", weight {app.weight:g}"
    require = f", on nodes with {' '.join(app.spec.require.split())}" if app.spec.require else ""
    size = containers(app.n_max) if app.n_min == app.n_max else f"{app.n_min} to {containers(app.n_max)}"
    return f"accepted as {app.id}: {size} of {amounts(app.demand)}{weight}{require}"


def updated(event: k.AppUpdated) -> str:
    given = (("weight", event.weight), ("n_min", event.n_min), ("n_max", event.n_max))
    return ", ".join(f"{name}={value:g}" for name, value in given if value is not None) or "nothing"


def size_requested(app: App, event: k.AppResizeRequested, at: int) -> str:
    """Describe the app's request; `at` is the log time (UTC ns)."""
    if event.containers:
        text = f"it asked for no more than {containers(event.containers)}{why(event.reason)}"
    else:
        text = "it withdrew its request for fewer containers"
    request = app.size_request
    if request is not None and at < counts_at(request):
        text += f"; counts from {moment(counts_at(request))} on, since it had asked for {request.before} shortly before"
    return text


def settings(event: k.PolicyChanged) -> str:
    """`ann changed settings (theta2=0.3)`."""
    parts = [f"policy={event.policy}"] if event.policy is not None else []
    given = {**(event.params or {}), **(event.set_params or {})}
    parts += [f"{name}={value}" for name, value in sorted(given.items())]
    parts += [f"{name}={getattr(event, name)}" for name in _TIMES if getattr(event, name) is not None]
    parts += [f"weights={event.weights}"] if event.weights is not None else []
    parts += [f"tenant_apps={event.tenant_apps}"] if event.tenant_apps is not None else []
    parts += [f"suspect_after={event.suspect_after}"] if event.suspect_after is not None else []
    what = ", ".join(parts)
    return f"{event.by} changed settings ({what if len(what) <= 80 else what[:79] + '…'})"


def drain(event: k.NodeDrainRequested) -> str:
    if not event.drain:
        return f"{event.by} ended the drain of {event.node}"
    if event.maintenance:
        return f"{event.by} put {event.node} into maintenance{why(event.reason)}"
    how = " until its agent is back" if event.until_rejoin else ""
    return f"{event.by} started draining {event.node}{how}{why(event.reason)}"


def forgotten(event: k.NodeForgetRequested) -> str:
    return f"{event.by} had {event.node} forgotten{why(event.reason)}"


RETURNED = {
    "probe": "an app that was tried there ran well",
    "evidence": "the apps that failed there turned out to be broken",
    "operator": "nodes do not become suspect by rule any more",
}
"""Texts by `NodeTrusted.how`."""


def suspected(state: State, fact: k.NodeSuspected) -> str:
    """`takes nothing new: train failed (no such file) and eval failed (exit code 1); …`"""
    probe = f"; one app is tried there at {moment(fact.probe_at)} or later" if fact.probe_at else ""
    failed = failed_there(state, fact.apps, fact.failures)
    return f"suspect, so it takes nothing new: {failed}{why(fact.reason)}{probe}"


def trusted(fact: k.NodeTrusted) -> str:
    return f"trusted again: {RETURNED[fact.how]}"


def trust_requested(event: k.NodeTrustRequested) -> str:
    return f"{event.by} had {event.node} trusted again{why(event.reason)}"


def scheduling(event: k.SchedulingPaused | k.SchedulingResumed) -> str:
    """`ann paused scheduling (a new switch)`."""
    done = "paused" if isinstance(event, k.SchedulingPaused) else "resumed"
    return f"{event.by} {done} scheduling{why(event.reason)}"


def paused(pause: Pause) -> str:
    """Describe a pause that lasts, and how it ends."""
    return (
        f"scheduling is paused since {moment(pause.at)} by {pause.by}{why(pause.reason)}, so nothing new is decided; "
        "`dorm resume` continues"
    )


def gate(event: k.OfGates, name: str = "it") -> str:
    """`ann held it: wrong data`"""
    done = "held" if isinstance(event, k.AppHoldRequested) else "released"
    return f"{event.by} {done} {name}{why(event.reason)}"


def noted(event: k.AppNoted) -> str:
    """`ann noted: the new data are in`"""
    return f"{event.by} noted: {event.text}"


Operated = (
    k.AppNoted
    | k.AppRetryRequested
    | k.AppHoldRequested
    | k.AppReleaseRequested
    | k.SchedulingPaused
    | k.SchedulingResumed
    | k.OfSessions
)
"""Requests about one app or the whole cluster, except for settings; and sessions in the app's containers."""


def operated(state: State, event: Operated, app: App) -> tuple[str, str] | None:
    """Return the kind and the text of a chapter; None if this does not concern the app.  An app that has its containers
    keeps them, so a pause concerns those without."""
    if isinstance(event, k.OfSessions):
        return entered(event, app)
    if isinstance(event, k.AppNoted):  # Also of one that has ended.
        return ("noted", noted(event)) if app_of_request(state, event.app, event.by) is app else None
    if app.ended:
        return None
    if isinstance(event, k.AppRetryRequested):
        target = app_of_request(state, event.app, event.by)
        return ("retry_requested", f"{event.by} asked to retry it now") if target is app else None
    if isinstance(event, k.AppHoldRequested | k.AppReleaseRequested):
        target = app_of_request(state, event.app, event.by)
        return ("held" if isinstance(event, k.AppHoldRequested) else "let_go", gate(event)) if target is app else None
    if app.current is not None:
        return None
    return "paused" if isinstance(event, k.SchedulingPaused) else "scheduling_resumed", scheduling(event)


def answered(fact: k.AppPlanned | k.AppRevised | k.AppRestarted) -> tuple[str, str]:
    """Return the kind and the text of a chapter about the master's answer to this app's owner, or plan for it."""
    if isinstance(fact, k.AppPlanned):
        return "planned", planned(fact)
    if isinstance(fact, k.AppRestarted):
        fresh = "from the start, without its checkpoint" if fact.fresh else "from its checkpoint"
        lives = ", though it had ended" if fact.spec is not None else ""
        return (
            "restart_requested",
            f"{fact.editor} restarted it{lives}: {fresh}, with its retries reset{why(fact.reason)}",
        )
    when = "from its next generation on" if fact.next is not None else "at once"
    what = ", ".join(fact.changed[:SHOWN]) + (
        f" and {len(fact.changed) - SHOWN} more" if len(fact.changed) > SHOWN else ""
    )
    return "edited", f"{fact.editor} edited its spec ({what}): revision {fact.revision}, {when}"


def user_of(document: Any) -> str:
    """Return the user that a submission names, checked or not; '' if it names none or the name is not printable."""
    user = document.get("user") if isinstance(document, dict) else None
    return user[:64] if isinstance(user, str) and user.isascii() and user.isprintable() else ""


# --- sessions -----------------------------------------------------------------------------------------------------------

_DID = {"exec": "ran a command in", "shell": "opened a shell in", "forward": "forwarded connections to"}


def delayed(event: k.ContainerDelayed) -> str:
    """`slot 0: node-1 can't create it: invalid log driver, for 3 s now`"""
    if event.over:
        return f"slot {event.slot}: {event.node} is no longer delayed"
    delay = Delay(event.doing, event.reason, 0, event.failing)
    return f"slot {event.slot}: {delay_words(event.node, delay)}, for {span(event.for_s)} now"


def entered(event: k.OfSessions, app: App) -> tuple[str, str] | None:
    """Return the kind and the text of a chapter; None for another app."""
    if event.app != app.id:
        return None
    where = f"slot {event.slot} on {event.node}"
    if isinstance(event, k.SessionStarted):
        port = f", port {event.port}" if event.port else ""
        command = f": {event.command}" if event.command and event.what == "exec" else ""
        return "entered", f"{event.user} {_DID[event.what]} {where}{port}{command}"
    return "session_ended", f"{event.user} left {where}{_how(event)}"


def _how(event: k.SessionEnded) -> str:
    if event.exit_code is not None:
        return f": the {'shell' if event.what == 'shell' else 'command'} ended with exit code {event.exit_code}"
    reason = " ".join(event.reason.split())
    connections = (
        f" after {event.connections} connection{'' if event.connections == 1 else 's'}" if event.connections else ""
    )
    return connections + (f": {reason}" if reason else "")


# --- decisions ----------------------------------------------------------------------------------------------------------


def changed(what: str, change: Changed) -> str:
    """Describe a decision's effect on an app, and for whose sake."""
    before, after = sum(change.before.values()), sum(change.after.values())
    if change.before == change.after:
        text = f"restarts in place, with {containers(after)} on {on_nodes(change.after)}"
    elif what in ("started", "restarted"):
        again = "again " if what == "restarted" else ""
        text = f"starts {again}with {containers(after)} on {on_nodes(change.after)}"
        text += f", after waiting {span(change.waited_s)}" if change.waited_s >= 0.05 else ""
    elif what == "stopped":
        text = f"stopped: gives up its {containers(before)} on {on_nodes(change.before)}, and waits"
    else:
        sized = f"{what} from {before} to {containers(after)}" if before != after else "moved"
        text = f"{sized}: {_ways(change.before, change.after)}"
    parts = [text, *([WHY[change.why]] if change.why in WHY else []), *_sakes(change)]
    if change.lost_s:
        parts.append(begins_again(change.lost_s))
    if change.reason is not None:
        parts.append(f"it has no more because {change.reason.text} ({change.reason.code})")
    if change.overtaken:
        parts.append("but an event overtook the decision, so this never took effect, and the app is placed again")
    return "; ".join(parts)


def _ways(before: Places, after: Places) -> str:
    fewer = {node: count - after.get(node, 0) for node, count in before.items() if count > after.get(node, 0)}
    more = {node: count - before.get(node, 0) for node, count in after.items() if count > before.get(node, 0)}
    kept = {node: min(count, after[node]) for node, count in before.items() if node in after}
    named = (("gives up", fewer), ("gets", more), ("keeps", kept))
    return ", ".join(f"{verb} {on_nodes(places)}" for verb, places in named if places) or "on the same nodes"


def _sakes(change: Changed) -> list[str]:
    parts = []
    if change.room_to:
        parts.append("in its room, by the same decision, " + listed(map(_took, change.room_to)))
    elif change.closed:
        parts.append(f"{listed(change.closed)} {'takes' if len(change.closed) == 1 else 'take'} no new containers")
    elif any(change.before.get(node, 0) > change.after.get(node, 0) for node in change.before):
        waiting = f", and {listed(change.still_waiting)} waited for room" if change.still_waiting else ""
        parts.append(f"no app took that room in this decision{waiting}")
    if change.room_from:
        given = [f"{giver.name} gave up on {on_nodes(giver.nodes)}" for giver in change.room_from]
        parts.append(f"with room that {listed(given)} in the same decision")
    return parts


def _took(took: Took) -> str:
    through = f" (in the room that {took.through} moved out of)" if took.through else ""
    return f"{took.name} {took.did} on {on_nodes(took.nodes)}{through}"


# --- adjustments --------------------------------------------------------------------------------------------------------


def released(phases: Phases, before: int, work: Work | None) -> str:
    """Describe the release of an adjustment: the previous generation has stopped, and the room is free."""
    lease = f" ({listed(phases.lease_ended)}: when its lease ended)" if phases.lease_ended else ""
    text = f"generation {phases.previous} ({containers(before)}) stopped after {span(phases.stop_s)}{lease}"
    if phases.prepare_s >= 0.0005:
        text += f", having worked on for {span(phases.prepare_s)} while generation {phases.generation} was prepared"
    text += f", {killed(phases.killed)}" if phases.killed else ""
    text += f", then waited {span(phases.wait_s)} for room" if phases.wait_s >= 0.05 else ""
    if phases.resume and phases.checkpoint is not None:
        text += f"; continues from its checkpoint at step {phases.checkpoint}, "
    else:
        text += "; no checkpoint is known, so it starts over, "
    if phases.lost_steps:
        text += f"{phases.lost_steps} step{'' if phases.lost_steps == 1 else 's'} lost"
    else:
        text += "no work lost" if work is not None else "and whether work was lost is unknown: it reported no progress"
    return text + (worked(work) if work is not None else "")


def killed(count: int) -> str:
    """Describe containers that were killed at the end of their grace time."""
    return f"{containers(count)} killed at the end of {'its' if count == 1 else 'their'} grace time"


def running(phases: Phases, count: int) -> str:
    took = f" {span(phases.start_s)} after the release" if phases.start_s is not None else ""
    total = f", {span(phases.total_s)} after the decision" if phases.total_s is not None else ""
    what = "its only container runs" if count == 1 else f"all {count} containers run"
    return f"{what}, started{took}{total}"


def resumed(work: Work, phases: Phases, rate_before: float) -> str:
    after = "" if phases.resumed_s is None else f", {span(phases.resumed_s)} after the decision"
    again = phases.previous > 0
    pace = f"; it made {rate_before:.3g} steps/s before" if again and rate_before else ""
    if again and phases.cost_s is not None:
        pace += f"; this adjustment cost {span(phases.cost_s)} of its work, counting the pause and lost steps"
    return f"{'works again' if again else 'reports its first progress'}, at step {work.first_step}{after}{pace}"


def worked(work: Work) -> str:
    """Return `; it worked from step 3 to 90 (4.2 steps/s)`, '' without progress."""
    if work.last_step <= work.first_step:
        return ""
    pace = f" ({work.steps_per_s:.3g} steps/s)" if work.steps_per_s else ""
    last = work.loss_is or (f"{work.loss:.6g}" if work.loss is not None else "")
    loss = f", loss {last}" if last else ""
    return f"; it worked from step {work.first_step} to {work.last_step}{pace}{loss}"


# --- containers and ends ------------------------------------------------------------------------------------------------


def exited(ended: Exit) -> str:
    """Describe how a container ended by itself, without naming its app."""
    where = f"slot {ended.slot} on {ended.node}"
    if ended.exit_code is None:
        ends = {"out_of_memory": "ran out of memory", "exit": "ended", "unknown": "ended for an unknown reason"}
        return f"{where} {ends.get(ended.reason, f'could not start ({ended.reason})')}{why(ended.message)}"
    code = ended.exit_code
    killed = f", killed by signal {code - 128}" if 128 < code < 160 else ""
    because = "" if ended.reason in ("", "exit") else f" ({ended.reason.replace('_', ' ')})"
    return f"{where} ended with exit code {code}{killed}{because}{why(ended.message)}"


def stopped(ended: Exit) -> str:
    """Describe how a container ended that a decision or a cancellation no longer wanted: its signal is not a failure."""
    code = "" if ended.exit_code is None or not ended.exit_code else f", with exit code {ended.exit_code}"
    return f"slot {ended.slot} on {ended.node} stopped as asked{code}"


def doubted(app: App | None, event: k.Event, chapters: Sequence[Chapter]) -> str:
    """Describe why the app's checkpoint may be incomplete, as this report of a container says; "" if it says nothing new."""
    if not isinstance(event, k.ContainerStarted | k.ContainerExited) or event.doubt is None:
        return ""
    shown = doubt_shown(app) if app is not None and app.id == event.app else None
    text = f"its checkpoint is doubtful: {shown['text']}" if shown is not None else ""
    return "" if any(chapter.text == text for chapter in chapters) else text


def tried_again(fact: k.GenerationFailed, app: App, others: int) -> str:
    retries, limit = (fact.retries, fact.limit) if fact.failure else (app.failures, app.spec.retries.limit)
    own = f" for {fact.failure}" if counts_against(app, fact.failure) != SHARED else ""
    cost = failure_cost(fact.fault, f"retry {retries} of {limit}{own}" if fact.counted else "")
    more = f"; {others} other container{'' if others == 1 else 's'} ended the same way" if others > 0 else ""
    again = f"it is retried at {moment(fact.retry_at)} or later ({cost})"
    return f"generation {fact.generation} failed: {fact.reason}{more}; {again}"


def totals(spent: AppTotals) -> str:
    """Describe a life in one line."""
    parts = [
        f"waited {span(spent.waited_s)}", f"was paused {span(spent.paused_s)}", f"ran {span(spent.ran_s)}",
        f"{spent.generations} generation{'' if spent.generations == 1 else 's'}",
        f"{spent.adjustments} adjustment{'' if spent.adjustments == 1 else 's'}",
        f"{spent.lost_steps} step{'' if spent.lost_steps == 1 else 's'} lost" if spent.step or spent.lost_steps
        else "reported no progress",
    ]  # fmt: skip
    if spent.failures:
        parts.append(f"retried {'once' if spent.failures == 1 else f'{spent.failures} times'}")
    return ", ".join(parts)


def has(count: int) -> str:
    """`it has 2 containers`."""
    return f"it has {containers(count)}"


def amounts(resources: Mapping[str, int]) -> str:
    """`4 cores, 8 GiB`."""
    return ", ".join(humanize(name, amount) for name, amount in resources.items())


def names(apps: Sequence[str], most: int = 3) -> list[str]:
    """Return the first few names, and how many more there are."""
    shown = list(apps[:most])
    return [*shown, f"{len(apps) - most} more"] if len(apps) > most else shown
