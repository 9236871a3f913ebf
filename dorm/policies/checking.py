"""Checks a policy's answer against the problem that it answers, in exact integers.

A policy may come from anyone, so no answer is trusted: `faults` names the rules that an answer breaks, in words, and
none for an answer that can be carried out.

    types      every part has the type that `problem.Allocation` states; figures are finite
    ids        every app of the problem has an entry, nothing else has one, and every node is one of the problem's
    pinned     a pinned app stays exactly where it is
    eligible   the others are on nodes that are not drained and satisfy what they require
    bounds     nothing, or n_min to n_max containers, in whole gangs on each node
    capacity   no node with containers of the answer gives more of a resource than it has
    sizes      texts are short, and there are no more of them than apps

Not checked are goals (fairness loss, θ2, apps that are stopped), which differ by policy, and ports, for which the core finds
another answer itself (`dorm.core.placement`).  The cost is linear in the containers' places, so it is small compared
with any policy.
"""

from __future__ import annotations

import math
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any

from dorm.policies.problem import Allocation, Batch, Plan, Reason, Slot
from events.limits import clipped
from events.quantities import short
from events.spec.requirements import LONGEST_DERIVED, requirement

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dorm.policies.problem import AppDemand, NodeRoom, Problem

LONGEST_CODE = 64
LONGEST_REASON = 1000
"""Characters of a reason's text."""
MOST_SLOTS = 10_000
"""Largest number of time slots of one app's plan."""
_LARGEST = 2**53
_FIGURES = ("utilization", "fairness_loss", "fairness_budget", "excess", "change_cost")
_MOST = 5
"""Faults that are named at most."""


def faults(problem: Problem, answer: Any) -> list[str]:
    """Return the faults of an answer, at most `_MOST`; none for an answer that can be carried out."""
    return nonsense(problem, answer) or infeasible(problem, answer)


def nonsense(problem: Problem, answer: Any) -> list[str]:
    """Return why this is not an answer to this problem: wrong types and sizes, missing or unknown ids."""
    if not isinstance(answer, Allocation):
        return [f"it answered with {_type(answer)}, not with an Allocation"]
    wrong = list(islice(_types(answer), _MOST))
    return wrong or list(islice(_ids(problem, answer), _MOST))


def infeasible(problem: Problem, answer: Allocation) -> list[str]:
    """Return which rules a well-formed answer breaks."""
    return list(islice(chain(_placements(problem, answer.counts), _extras(problem, answer)), _MOST))


def in_words(faults: list[str]) -> str:
    """Return faults in one short line."""
    return clipped("; ".join(faults))


# --- types --------------------------------------------------------------------------------------------------------------


def _types(answer: Any) -> Iterator[str]:
    """`answer` is an Allocation only by its class: nothing has checked its fields."""
    for name in ("counts", "reasons", "shortage", "batches", "plans"):
        if not isinstance(getattr(answer, name), dict):
            yield f"{name} is {_type(getattr(answer, name))}, not a dict"
            return
    for name in _FIGURES:
        if (wrong := _figure(getattr(answer, name))) is not None:
            yield f"{name} is {wrong}"
    if not isinstance(answer.bound, (int, float)) or isinstance(answer.bound, bool) or math.isnan(answer.bound):
        yield f"bound is {short(answer.bound)}, not a number"
    for name in ("overhead", "overhead_budget"):
        value = getattr(answer, name)
        if not _whole(value) or not -1 <= value <= _LARGEST:
            yield f"{name} is {short(value)}, not a count"
    if not isinstance(answer.status, str) or not 0 < len(answer.status) <= LONGEST_CODE:
        yield f"status is {short(answer.status)}, not a short word"
    for app, counts in answer.counts.items():
        if not isinstance(app, str):
            yield f"counts has the key {short(app)}, which is no id of an app"
        elif not isinstance(counts, dict):
            yield f"the containers of {short(app)} are {_type(counts)}, not a dict by node"
        elif counts and set(map(type, counts)) != {str}:
            yield f"{short(app)} has a node whose id is no text"
        # A bool is not a count.
        elif counts and (set(map(type, counts.values())) != {int} or min(counts.values()) <= 0):
            yield f"{short(app)} has a count that is not a positive whole number"
    for app, lacking in answer.shortage.items():
        if not isinstance(app, str) or not _whole(lacking) or not 0 <= lacking <= _LARGEST:
            yield f"the shortage of {short(app)} is {short(lacking)}, not a count"
    for app, reason in answer.reasons.items():
        if not isinstance(app, str) or not _is_reason(reason):
            yield f"the reason of {short(app)} is no code of {LONGEST_CODE} and text of {LONGEST_REASON} characters"


def _figure(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"{_type(value)}, not a number"
    return None if math.isfinite(value) and abs(value) <= 1e300 else f"{value}, which is not finite"


def _is_reason(reason: Any) -> bool:
    if not isinstance(reason, Reason):
        return False
    code, text = _unchecked(reason.code), _unchecked(reason.text)
    texts = isinstance(code, str) and isinstance(text, str)
    return texts and 0 < len(code) <= LONGEST_CODE and len(text) <= LONGEST_REASON


def _unchecked(value: Any) -> Any:
    """Return a field whose type was declared and not verified."""
    return value


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _type(value: Any) -> str:
    return f"a {type(value).__name__}"


# --- ids ----------------------------------------------------------------------------------------------------------------


def _ids(problem: Problem, answer: Allocation) -> Iterator[str]:
    known = {app.id: app for app in problem.apps}
    if missing := [app for app in known if app not in answer.counts]:
        yield f"it says nothing about {_named(missing)}"
    for name in ("counts", "reasons", "shortage", "batches", "plans"):
        if strange := [app for app in getattr(answer, name) if app not in known]:
            yield f"{name} has {_named(strange)}, which the problem does not have"


def _named(ids: list[Any]) -> str:
    return f"app {short(ids[0])}" + (f" and {len(ids) - 1} more" if len(ids) > 1 else "")


# --- places -------------------------------------------------------------------------------------------------------------


def _placements(problem: Problem, counts: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    nodes = {node.id: node for node in problem.nodes}
    drained = {node.id: None for node in problem.nodes if node.drained}
    used: dict[str, dict[str, int]] = {}
    """Used amounts, by resource and node."""
    placed: dict[str, dict[str, None]] = {}
    """Nodes on which an app that is not pinned uses some of a resource, by resource."""
    for app in problem.apps:
        given = counts[app.id]
        if not given and not app.pinned:
            continue
        if app.pinned and given != app.current:
            yield f"{short(app.id)} is pinned at {short(app.current)}, and the answer is {short(dict(given))}"
        elif not app.pinned:
            yield from _bounds(app, given)
            yield from _eligible(app, given, nodes, drained)
        for kind, need in app.demand.items():
            if need <= 0:
                continue
            here = used.setdefault(kind, {})
            for node, count in given.items():
                here[node] = here.get(node, 0) + need * count
            if not app.pinned:
                placed.setdefault(kind, {}).update(dict.fromkeys(given))
    for kind, names in placed.items():
        here = used[kind]
        for name in names:
            have = nodes[name].capacity.get(kind, 0) if name in nodes else here[name]
            if here[name] > have:
                yield f"node {short(name)} is given {here[name]} of {short(kind)}, and has {have}"


def _bounds(app: AppDemand, given: Mapping[str, int]) -> Iterator[str]:
    total = sum(given.values())
    if not app.n_min <= total <= app.n_max:
        yield f"{short(app.id)} gets {total} containers, and its bounds are {app.n_min} to {app.n_max}"
    if app.gang > 1 and (broken := [node for node, count in given.items() if count % app.gang]):
        yield f"{short(app.id)} gets {given[broken[0]]} containers on {short(broken[0])}, which is no whole gang of {app.gang}"


def _eligible(
    app: AppDemand, given: Mapping[str, int], nodes: Mapping[str, NodeRoom], drained: Mapping[str, None]
) -> Iterator[str]:
    if not app.require.strip() and not drained and given.keys() <= nodes.keys():
        return  # The usual case, without checking each node.
    wanted = requirement(app.require, LONGEST_DERIVED)
    for name in given:
        node = nodes.get(name)
        if node is None:
            yield f"{short(app.id)} is placed on {short(name)}, which is no node of the problem"
        elif name in drained:
            yield f"{short(app.id)} is placed on {short(name)}, which is drained"
        elif not wanted.matches(node.labels):
            yield f"{short(app.id)} is placed on {short(name)}, which does not satisfy what it requires"


# --- batches and plans --------------------------------------------------------------------------------------------------


def _extras(problem: Problem, answer: Allocation) -> Iterator[str]:
    apps = {app.id: app for app in problem.apps}
    for name, size in answer.batches.items():
        batch = apps[name].batch
        if not _whole(size) or not isinstance(batch, Batch) or not batch.least <= size <= batch.most:
            yield f"{short(name)} gets a batch of {short(size)}, which is not in its range"
    for name, plan in answer.plans.items():
        if not isinstance(_unchecked(plan), Plan) or _figure(plan.worth) is not None or _figure(plan.cost) is not None:
            yield f"the plan of {short(name)} is no plan"
            continue
        slots = _unchecked(plan.slots)
        if not isinstance(slots, tuple) or len(slots) > MOST_SLOTS or not all(_is_slot(slot) for slot in slots):
            yield f"the plan of {short(name)} is not a tuple of at most {MOST_SLOTS} slots"
        elif any(earlier.at_s > later.at_s for earlier, later in pairwise(slots)):
            yield f"the plan of {short(name)} is not in the order of time"


def _is_slot(slot: Any) -> bool:
    if not isinstance(slot, Slot) or _figure(slot.at_s) is not None:
        return False
    counts = _unchecked(slot.counts)
    return isinstance(counts, dict) and all(
        isinstance(node, str) and _whole(count) and count > 0 for node, count in counts.items()
    )
