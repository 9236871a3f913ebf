"""The difference between two states of one log: apps, nodes, settings, and the cluster as a whole.

It covers what users regard as a change, not everything in a digest: where containers are but not which ports they have, how
far an app is but not when it last reported.  `diff` compares; the functions of the second part put the result into words, one
line for each app, node and setting.

Two states do not say who changed the settings between them, so `settings_between` asks the log.  It reads only the records
that determine settings and authority: a server sends no others, so a year between the states costs little.
"""

from __future__ import annotations

import copy
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from dorm.core.evolve import evolve
from dorm.core.progress import shown
from dorm.core.query.views import node_rows, note_of, sizes, summary
from dorm.core.settings import TIMES, parameters_in_force
from dorm.core.state import digest
from events import kinds as k
from events import subjects
from events.quantities import SECOND, humanize
from events.spec import document_of
from replay.reading import cluster_name
from replay.words import containers, moment, span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dorm.core.progress import Newest
    from dorm.core.state import App, Settings, State
    from events.log.interface import ReadableLog


# --- comparing --------------------------------------------------------------------------------------------------------

_UPDATED = ("n_min", "n_max", "weight")
"""Fields of a spec that have lines of their own, since updates change them too."""


class Changed(msgspec.Struct, frozen=True):
    """A property with another value; None if the app, node or setting does not exist."""

    field: str
    before: Any
    after: Any


class Thing(msgspec.Struct, frozen=True):
    """An app or a node that changed."""

    name: str
    id: str
    how: Literal["came", "gone", "changed"]
    """Ended apps stay in the state for a while; `gone` is an app that has left it since."""
    changes: list[Changed]
    """Changed properties; all of an app or node that came or is gone."""


class Point(msgspec.Struct, frozen=True):
    """A state's place in the log; log time in UTC nanoseconds."""

    seq: int
    time: int
    digest: str


class SetBy(msgspec.Struct, frozen=True):
    """The effective part of a change of settings between the two states."""

    seq: int
    time: int
    """Log time (UTC ns)."""
    by: str
    changes: list[Changed]


class Diff(msgspec.Struct, frozen=True):
    """The difference from one state to another, which may be the earlier one."""

    before: Point
    after: Point
    apps: list[Thing]
    """Apps by arrival."""
    nodes: list[Thing]
    """Nodes by name."""
    settings: list[Changed]
    """The policy, its parameters, the master's times and the folder of checkpoints, by their names in the log."""
    cluster: list[Changed]
    set_by: list[SetBy] = []
    """Changes of settings between the two, in the log's order; including changes that were reverted."""

    @property
    def same(self) -> bool:
        """Return whether nothing that a diff covers has changed."""
        return not (self.apps or self.nodes or self.settings or self.cluster)


def diff(
    before: State, after: State, set_by: Sequence[SetBy] = (), reported: tuple[Newest, Newest] | None = None
) -> Diff:
    """Compare two states of one log; `set_by` are the changes of settings between them
    (`replay.diff`), `reported` what apps had reported by then (`replay.travel`)."""
    old, new = reported or ({}, {})
    arrivals = {app.id: (app.seq, app.id) for state in (before, after) for app in state.apps.values()}
    old_nodes, new_nodes = _nodes(before), _nodes(after)
    return Diff(
        before=_point(before),
        after=_point(after),
        apps=[
            thing
            for app in sorted(arrivals, key=arrivals.__getitem__)
            if (
                thing := _thing(
                    app, _app(before.apps.get(app), old, before.time), _app(after.apps.get(app), new, after.time)
                )
            )
        ],
        nodes=[
            thing
            for node in sorted({*old_nodes, *new_nodes})
            if (thing := _thing(node, old_nodes.get(node), new_nodes.get(node)))
        ],
        settings=settings_changed(before.settings, after.settings),
        cluster=_changes(_cluster(before), _cluster(after)),
        set_by=list(set_by),
    )


def only(whole: Diff, name: str) -> Diff:
    """Return the part of a difference that concerns one app (by name or id) or node."""
    return msgspec.structs.replace(
        whole,
        apps=[thing for thing in whole.apps if name in (thing.name, thing.id)],
        nodes=[thing for thing in whole.nodes if name == thing.name],
        settings=[],
        cluster=[],
        set_by=[],
    )


def _point(state: State) -> Point:
    return Point(state.seq, state.time, digest(state))


def _thing(identity: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> Thing | None:
    """Return the change of one app or node, or None if nothing has changed."""
    changes = _changes(before or {}, after or {})
    if not changes:
        return None
    name = str((after or before or {}).get("name", identity))
    return Thing(
        name=name,
        id=identity,
        how="came" if before is None else "gone" if after is None else "changed",
        changes=[change for change in changes if change.field != "name"],
    )


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Changed]:
    return [
        Changed(field, before.get(field), after.get(field))
        for field in dict.fromkeys([*before, *after])
        if before.get(field) != after.get(field) or (field in before) is not (field in after)
    ]


def _app(app: App | None, newest: Newest, time: int) -> dict[str, Any] | None:
    if app is None:
        return None
    now = shown(app, newest)
    return {
        "name": app.name,
        "user": app.user,
        "phase": app.phase,
        "why": note_of(app, time),
        "placement": sizes(app),
        "generation": app.generation,
        "n_min": app.n_min,
        "n_max": app.n_max,
        "weight": app.weight,
        "cancel_requested": app.cancel_requested,
        "adjustments": app.adjustments,
        "failures": app.failures,
        "step": now.step,
        "loss": now.loss,
        "checkpoint": app.checkpoint,
        "lost_steps": app.lost_steps,
        "revision": app.revision,
        "spec": {name: value for name, value in document_of(app.next_spec).items() if name not in _UPDATED},
    }


def _nodes(state: State) -> dict[str, dict[str, Any]]:
    return {
        row.name: {
            "condition": row.condition,
            "address": row.address,
            "runtime": row.runtime,
            "containers": row.containers,
            "capacity": row.capacity,
            "used": row.used,
            "labels": row.labels,
        }
        for row in node_rows(state)
    }


def settings_changed(before: Settings, after: Settings) -> list[Changed]:
    """Return the settings that differ, by their names in the log."""
    # Only policies know the parameters in force, and importing them takes a second.
    return [] if before == after else _changes(_settings(before), _settings(after))


def _settings(settings: Settings) -> dict[str, Any]:
    try:
        parameters = parameters_in_force(settings)
    except ValueError:  # Recorded under a policy that this build does not have.
        parameters = settings.params
    times = {name: getattr(settings, name) for name in TIMES}
    weights = {"weights": settings.weights} if settings.weights is not None else {}
    most = {"tenant_apps": settings.tenant_apps} if settings.tenant_apps is not None else {}
    suspicion = {"suspect_after": settings.suspect_after, "suspect_within_s": settings.suspect_within_s}
    folder = {"checkpoints": settings.checkpoints}
    return {"policy": settings.policy, **parameters, **times, **folder, **weights, **most, **suspicion}


def _cluster(state: State) -> dict[str, Any]:
    figures = summary(state)
    return {
        "epoch": state.epoch,
        "decisions": state.figures.decisions,
        "utilization": round(figures.utilization, 6),
        "fairness_loss": round(figures.fairness_loss, 6),
        "unanswered": len(state.submissions),
        **msgspec.structs.asdict(state.counters),
    }


# --- in words ---------------------------------------------------------------------------------------------------------

_CLUSTER = {
    "epoch": "masters elected",
    "decisions": "decisions",
    "utilization": "utilization",
    "fairness_loss": "fairness loss",
    "unanswered": "submissions that no master has answered",
    "unreadable": "records that can't be read",
    "unknown": "events that are hidden here, or of kinds that this build doesn't know",
    "ignored": "facts that changed nothing",
    "void_rounds": "void rounds of earlier masters",
}

_LONGEST = 60
"""Characters of one value of a spec."""


def headline(difference: Diff) -> str:
    """Return the two points and the distance between them."""
    records, time = (
        abs(difference.after.seq - difference.before.seq),
        abs(difference.after.time - difference.before.time),
    )
    far = f"{records} record{'' if records == 1 else 's'}"
    if difference.before.seq and difference.after.seq:
        far += f" in {span(time / SECOND)}"
    return f"{_point_in_words(difference.before)} -> {_point_in_words(difference.after)}: {far}"


def _point_in_words(point: Point) -> str:
    return f"sequence {point.seq} ({moment(point.time)})" if point.seq else "before the first record"


def of_app(thing: Thing) -> str:
    """`running -> completed; 4 containers (n0 2, n1 2) -> none; step 100 -> 400`."""
    by_field = {change.field: change for change in thing.changes}
    if thing.how != "changed":
        side = {change.field: change.after if thing.how == "came" else change.before for change in thing.changes}
        parts = [side["phase"], f"of {side['user']}", _placed(side["placement"]) if side["placement"] else ""]
        parts += [f"step {side['step']}" if side["step"] else "", side["why"]]
        return f"{thing.how}: {', '.join(part for part in parts if part)}"
    lines = [_of_app(change, by_field) for change in thing.changes]
    return "; ".join(text for text in lines if text)


def _of_app(change: Changed, changes: Mapping[str, Changed]) -> str:
    before, after = change.before, change.after
    match change.field:
        case "phase":
            return f"{before} -> {after}"
        case "why":
            return f"why: {after}" if after else f"no longer: {before}"
        case "placement":
            return f"{_placed(before)} -> {_placed(after)}"
        case "generation":
            again = "placement" not in changes and "phase" not in changes
            return f"generation {before} -> {after}" + (", in the same place" if again else "")
        case "cancel_requested":
            return "asked to be cancelled" if after else "no longer asked to be cancelled"
        case "adjustments":
            return _more(before, after, "resized {} time{}")
        case "failures":
            return _more(before, after, "failed {} time{}")
        case "lost_steps":
            return _more(before, after, "{} step{} lost")
        case "revision" if "spec" in changes:
            return f"revision {before} -> {after} of its spec"
        case "spec":
            return _of_spec(before, after)
        case "loss":
            return f"loss {_number(before)} -> {_number(after)}"
        case "checkpoint":
            return f"checkpoint {'none' if before is None else before} -> {'none' if after is None else after}"
        case field:
            return f"{field} {_number(before)} -> {_number(after)}"


def _of_spec(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return `image 'a' -> 'b', env {'LR': 1} -> none` for the fields that differ."""
    names = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
    lines = [f"{name} {_value(before.get(name))} -> {_value(after.get(name))}" for name in names]
    return ", ".join(lines)


def _value(value: Any) -> str:
    text = "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def of_node(thing: Thing) -> str:
    """`up -> lost; 3 -> 0 containers`."""
    side = {change.field: change.after if thing.how == "came" else change.before for change in thing.changes}
    if thing.how != "changed":
        capacity = ", ".join(humanize(name, amount) for name, amount in side["capacity"].items())
        holds = f", {containers(side['containers'])} on it" if side["containers"] else ""
        return f"{thing.how}: {side['condition']}, at {side['address']}, with {capacity or 'nothing'}{holds}"
    lines = []
    for change in thing.changes:
        before, after = change.before, change.after
        match change.field:
            case "condition":
                lines.append(f"{before} -> {after}")
            case "containers":
                lines.append(f"{before} -> {after} containers")
            case "capacity" | "used":
                lines.append(_amounts("has" if change.field == "capacity" else "allocated", before, after))
            case "labels":
                lines.append(_labels(before, after))
            case field:
                lines.append(f"{field} {before} -> {after}")
    return "; ".join(lines)


def of_settings(changes: Sequence[Changed]) -> list[str]:
    """Return `theta2: 0.1 -> 0.2` for each setting; after a change of policy, without the old one's own parameters."""
    another = any(change.field == "policy" for change in changes)
    shown_changes = [change for change in changes if not (another and change.after is None)]
    return [f"{change.field}: {_number(change.before)} -> {_number(change.after)}" for change in shown_changes]


def of_set_by(change: SetBy) -> str:
    """`alice set theta2: 0.1 -> 0.2 at 2026-11-21 09:00:05 UTC (record 118)`."""
    return f"{change.by} set {'; '.join(of_settings(change.changes))} at {moment(change.time)} (record {change.seq})"


def of_cluster(change: Changed) -> str:
    return f"{_CLUSTER.get(change.field, change.field)}: {_number(change.before)} -> {_number(change.after)}"


def _placed(placement: Mapping[str, int]) -> str:
    total = sum(placement.values())
    if not total:
        return "no containers"
    nodes = ", ".join(f"{node} {count}" for node, count in placement.items())
    return f"{containers(total)} ({nodes})"


def _amounts(what: str, before: Mapping[str, int], after: Mapping[str, int]) -> str:
    changed = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
    parts = [f"{humanize(name, before.get(name, 0))} -> {humanize(name, after.get(name, 0))}" for name in changed]
    return f"{what} {', '.join(parts)}"


def _labels(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    changed = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
    return "labels " + ", ".join(f"{name} {before.get(name, 'none')} -> {after.get(name, 'none')}" for name in changed)


def _more(before: int, after: int, more: str) -> str:
    """Describe a counter, which only grows, unless the later state comes first."""
    number = after - before
    if number < 0:
        return more.format(f"{before} -> {after}", "s")
    return more.format(f"{number} more" if before else number, "" if number == 1 else "s")


def _number(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# --- who changed settings ---------------------------------------------------------------------------------------------

_KINDS = (k.PolicyChanged, *get_args(k.OfIdentities))


async def settings_between(log: ReadableLog, first: State, second: State) -> list[SetBy]:
    """Return the changes that took effect after the earlier state, up to the later one, in order.  Raises what `log.read`
    raises."""
    earlier, later = (first, second) if first.seq <= second.seq else (second, first)
    if earlier.seq == later.seq:
        return []
    state = copy.deepcopy(earlier)
    state.plugins = {**earlier.plugins, **later.plugins}
    state.nodes = copy.deepcopy({**earlier.nodes, **later.nodes})
    cluster = await cluster_name(log)
    wanted = [subjects.fact_pattern(cluster, cls.__name__) for cls in _KINDS]
    changes_made: list[SetBy] = []
    async with aclosing(log.read(after=earlier.seq, subjects=wanted)) as batches:
        async for batch in batches:
            for record in batch:
                if record.seq > later.seq:
                    return changes_made
                before = copy.copy(state.settings)
                state.seq = record.seq - 1
                folded = evolve(state, record)
                event = folded.event
                changes = settings_changed(before, state.settings)
                if isinstance(event, k.PolicyChanged) and changes and folded.outcome in ("applied", "refused"):
                    changes_made.append(SetBy(record.seq, record.time, event.by, changes))
    return changes_made
