"""The difference between two states in words: one line for each app, node and setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from events.quantities import SECOND, humanize
from replay.words import containers, moment, span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from replay.travel.diff import Changed, Diff, Point, SetBy, Thing

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


def headline(found: Diff) -> str:
    """Return the two points and the distance between them."""
    records, time = abs(found.after.seq - found.before.seq), abs(found.after.time - found.before.time)
    far = f"{records} record{'' if records == 1 else 's'}"
    if found.before.seq and found.after.seq:
        far += f" in {span(time / SECOND)}"
    return f"{_point(found.before)} -> {_point(found.after)}: {far}"


def _point(point: Point) -> str:
    return f"sequence {point.seq} ({moment(point.time)})" if point.seq else "before the first record"


def of_app(thing: Thing) -> str:
    """`running -> completed; 4 containers (n0 2, n1 2) -> none; step 100 -> 400`."""
    by_field = {change.field: change for change in thing.changes}
    if thing.how != "changed":
        side = {change.field: change.after if thing.how == "came" else change.before for change in thing.changes}
        parts = [side["phase"], f"of {side['user']}", _placed(side["placement"]) if side["placement"] else ""]
        parts += [f"step {side['step']}" if side["step"] else "", side["why"]]
        return f"{thing.how}: {', '.join(part for part in parts if part)}"
    said = [_of_app(change, by_field) for change in thing.changes]
    return "; ".join(text for text in said if text)


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
    said = [f"{name} {_value(before.get(name))} -> {_value(after.get(name))}" for name in names]
    return ", ".join(said)


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
    said = []
    for change in thing.changes:
        before, after = change.before, change.after
        match change.field:
            case "condition":
                said.append(f"{before} -> {after}")
            case "containers":
                said.append(f"{before} -> {after} containers")
            case "capacity" | "used":
                said.append(_amounts("has" if change.field == "capacity" else "allocated", before, after))
            case "labels":
                said.append(_labels(before, after))
            case field:
                said.append(f"{field} {before} -> {after}")
    return "; ".join(said)


def of_settings(changes: Sequence[Changed]) -> list[str]:
    """Return `theta2: 0.1 -> 0.2` for each setting; after a change of policy, without the old one's own parameters."""
    another = any(change.field == "policy" for change in changes)
    told = [change for change in changes if not (another and change.after is None)]
    return [f"{change.field}: {_number(change.before)} -> {_number(change.after)}" for change in told]


def of_set_by(one: SetBy) -> str:
    """`alice set theta2: 0.1 -> 0.2 at 2026-11-21 09:00:05 UTC (record 118)`."""
    return f"{one.by} set {'; '.join(of_settings(one.changes))} at {moment(one.time)} (record {one.seq})"


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


def _more(before: int, after: int, words: str) -> str:
    """Describe a counter, which only grows, unless the later state comes first."""
    number = after - before
    if number < 0:
        return words.format(f"{before} -> {after}", "s")
    return words.format(f"{number} more" if before else number, "" if number == 1 else "s")


def _number(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
