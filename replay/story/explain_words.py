"""An explanation in words: one paragraph for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.delays import delay_shown
from dorm.core.faults import avoiding, keeps
from dorm.core.gates import closed_gates
from dorm.core.progress import doubt_shown
from events.quantities import SECOND
from replay.story.words import paused
from replay.words import containers, moment, span

if TYPE_CHECKING:
    from dorm.core.state import App, LiveChange, State
    from replay.story.explanation import Explanation, Why, Witness


MOST_CHANGES = 3
"""Changes of a plan that are named one by one."""


def without_details(witness: Witness, what: str) -> str:
    """Describe an app that the state does not hold: `pending`, `refused`, `gone`."""
    name = witness.wanted
    if what == "pending":
        return f"{name} is submitted, and no master has answered yet; it is accepted or refused once a master runs."
    if what == "gone":
        past = witness.past
        assert past is not None
        why = f": {past.reason}" if past.reason else ""
        return (
            f"{name} {past.ended} at {past.position} ({moment(past.time)}){why}.  Ended apps are not kept for so "
            f"long; an earlier moment (`--at {past.position.split('.')[0]}`) shows more."
        )
    refusal = witness.refusal
    assert refusal is not None
    return f"{name} was refused at {refusal.position} ({moment(refusal.time)}): {refusal.reason}."


def paragraph(state: State, app: App, found: Explanation) -> str:
    """Describe an app that the state holds."""
    if app.ended:
        sentences = [_ending(app, found)]
    else:
        sentences = [
            _size(state, app, found),
            *_why_not_more(app, found),
            *_paused(state, found),
            *_by_plan(app, found),
            *_on_its_way(state, app),
            *_delayed(app, found),
            *_around_nodes(state, app, found),
        ]
    sentences += _cost(app, found)
    doubt = doubt_shown(app)
    if doubt is not None:
        advice = f" ({doubt['advice']})" if doubt["advice"] else ""
        sentences.append(f"Its checkpoint is doubtful: {doubt['text']}{advice}.")
    refusal = found.refusal
    if refusal is not None:
        what = "An update" if refusal.refused == "update" else "A later submission of this name"
        sentences.append(f"{what} was refused at {refusal.position}: {refusal.reason}.")
    return "  ".join(sentences)


def _ending(app: App, found: Explanation) -> str:
    why = f": {app.end_reason}" if app.end_reason else ""
    return f"{app.name} {app.ended} at {moment(app.ended_at)}, {_ago(app.ended_at, found)}{why}."


def _ago(time: int, found: Explanation) -> str:
    return f"{span(max(0, found.at - time) / SECOND)} ago"


def _size(state: State, app: App, found: Explanation) -> str:
    share = ""
    if found.fair_share is not None and found.share is not None and found.dominant:
        share = (
            f"; that is {_part(found.share)} of all {found.dominant}, and a perfectly fair cluster would give it "
            f"{_part(found.fair_share)}"
        )
    if found.containers == 0:
        since = found.waiting_since or app.accepted_at
        return (
            f"{app.name} is {app.phase} and has had no containers for {span(max(0, found.at - since) / SECOND)}; "
            f"it needs at least {found.n_min} and can use {found.n_max}{share}."
        )
    places = ", ".join(_place(state, node, count) for node, count in found.nodes.items())
    of = "all" if found.containers == found.n_max else f"{found.containers} of at most"
    return f"{app.name} is {app.phase} with {of} {containers(found.n_max)}, on {places}{share}."


def _part(share: float) -> str:
    return f"{share * 100:.3g}%"


def _place(state: State, node: str, count: int) -> str:
    known = state.nodes.get(node)
    if known is None or known.takes_new:
        return f"{node} ({count})"
    if known.condition != "up":
        return f"{node} ({count}, {known.condition})"
    return f"{node} ({count}, {known.shown if known.shown in ('unfit', 'suspect') else 'drained'})"


def _why_not_more(app: App, found: Explanation) -> list[str]:
    decision, reason = found.decision, found.reason
    by = f"decision {decision.position} ({_ago(decision.time, found)})" if decision else ""
    if app.retry_at:
        why = f": {reason.text}" if reason else ""
        return [f"It failed{why}.  It is retried at {moment(app.retry_at)}."]
    if reason is not None and closed_gates(app, found.at) is not None:
        return [_gated(app, reason, found)]
    if reason is None:
        if found.containers >= found.n_max:
            return []
        return [
            f"The last one, {by}, gave no reason; the next one considers it." if by else "There is no decision yet."
        ]
    have = "is below its n_max" if found.containers else "waits"
    since = f"first given {_ago(reason.since, found)}, and last by {by}"
    return [f"It {have} because {reason.text} ({reason.code}).  This reason was {since}."]


def _gated(app: App, reason: Why, found: Explanation) -> str:
    """Describe an app that may not run, even if there is room."""
    is_held = reason.code == "hold"
    since = f"for {span(max(0, found.at - reason.since) / SECOND)} now"
    text = f"It {'is ' if is_held else ''}{reason.text} ({reason.code}), {since}"
    text += f"; `dorm release {app.name}` ends that." if is_held else "."
    return text + ("  It gives its containers back." if found.containers else "")


def _paused(state: State, found: Explanation) -> list[str]:
    pause = state.paused
    if pause is None or found.containers >= found.n_max:
        return []
    text = paused(pause)
    return [f"{text[0].upper()}{text[1:]}."]


def _by_plan(app: App, found: Explanation) -> list[str]:
    if app.plan is None:
        return []
    to_come = [slot for slot in app.plan.slots if slot.at > found.at]
    changes = [f"{sum(slot.containers.values())} from {moment(slot.at)}" for slot in to_come[:-1][:MOST_CHANGES]]
    more = len(to_come) - 1 - len(changes)
    steps = f"It has {', '.join(changes)}{f', and {more} more changes' if more > 0 else ''}.  " if changes else ""
    return [
        f"Its plan, made at {app.plan.seq} ({_ago(app.plan.at, found)}), is done at {moment(app.plan.slots[-1].at)}: "
        f"worth {app.plan.worth:.3g} at a cost of {app.plan.cost:.3g}.  {steps}".rstrip()
    ]


def _delayed(app: App, found: Explanation) -> list[str]:
    text = delay_shown(app, found.at)
    return [f"It is delayed: {text}."] if text else []


def _on_its_way(state: State, app: App) -> list[str]:
    current = app.current
    if current is not None and current.change is not None:
        return [_changing(current.change, len(current.planned))]
    if current is None or current.started_at:
        return []
    size = containers(len(current.containers))
    if current.released:
        return [f"{current.running} of {size} have started."]
    left = [c for g in app.generations.values() if g is not current and g.released for c in g.containers.values()]
    running = [c for c in left if c.state != "exited"]
    if running and current.preparing and state.time < current.prepare_until:
        nodes = ", ".join(current.preparing)
        return [
            f"It gets {size}, and works on until {nodes} prepared them, at most until {moment(current.prepare_until)}."
        ]
    if running:
        lost = sorted({c.node for c in running if c.node in state.nodes and state.nodes[c.node].condition == "lost"})
        unheard = f"; {', '.join(lost)} is not heard, so its lease must end first" if lost else ""
        return [f"It gets {size} as soon as {len(running)} of the previous {len(left)} have stopped{unheard}."]
    return [f"Its {size} start as soon as their room is free."]


def _around_nodes(state: State, app: App, found: Explanation) -> list[str]:
    """Describe which nodes the app avoids, and whether it stays as it is because a node of it is suspect."""
    said = [f"It avoids {text}, because it failed there."] if (text := avoiding(state, app, found.at)) else []
    if app.current is not None and keeps(state, app, app.current):
        suspect = [
            node for node in app.current.by_node() if node in state.nodes and state.nodes[node].suspect is not None
        ]
        said.append(f"It is not resized while {', '.join(sorted(suspect))} is suspect.")
    return said


def _changing(change: LiveChange, count: int) -> str:
    if not change.released_at:
        return f"It is resized live to {containers(count)} as soon as their room is free, and trains on meanwhile."
    started = sum(1 for newcomer in change.newcomers.values() if newcomer.state == "running")
    joining = f"; {started} of {len(change.newcomers)} newcomers have started" if change.newcomers else ""
    return f"It is resized live to {containers(count)}, as membership {change.membership}{joining}."


def _cost(app: App, found: Explanation) -> list[str]:
    if not found.history:
        return []
    last = found.history[-1]
    if last["live"]:
        paused = f"{last['pause_s'] * 1e3:.3g} ms"
        return [f"Its last adjustment ({containers(last['containers'])}) was live: it paused for {paused}."]
    total = f"took {span(last['total_s'])}" if last["total_s"] is not None else "has not ended yet"
    lost = last["lost_steps"]
    redone = f", and {lost} step{' was' if lost == 1 else 's were'} repeated" if lost else ", and no work was lost"
    if not app.step and app.checkpoint is None:
        redone = "; whether work was lost is unknown, since it reports no progress"
    if found.last_change is not None and found.last_change.lost_s:
        lost_s = span(found.last_change.lost_s)
        redone = f"; it restarted from the beginning, since it had reported no checkpoint: {lost_s} of work lost"
    cut = f"; {last['killed']} had to be killed at the end of the grace time" if last["killed"] else ""
    return [f"Its last adjustment ({containers(last['containers'])}) {total}{redone}{cut}."]
