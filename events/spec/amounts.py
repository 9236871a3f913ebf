"""Quantities of a spec: durations and resources, and the bounds on what one app may ask of a cluster and its neighbors.

Logs hold specs that earlier releases accepted with other bounds, so the fold asks `can_be_read` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from events.quantities import CPU, MEMORY, QuantityError, duration, humanize, resource
from events.spec.faults import SpecError
from events.spec.gates import starts_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from events.quantities import Quantity
    from events.spec.spec import AppSpec

LONGEST_GRACE_S = 3600.0
"""How long, in seconds, a cancelled app that ignores SIGTERM may keep its containers (`dorm kill` does not wait)."""
LEAST_AMOUNTS = {CPU: 10, MEMORY: 8 * 2**20}
"""The smallest demand of a resource that a spec names, in base units: 10 milli-cores, 8 MiB.  Docker refuses less than
6 MiB; and a node could get so many containers of a milli-core that it does nothing but start them."""


def amount_faults(spec: AppSpec) -> Iterator[SpecError]:
    """Yield an error for each invalid quantity, and for each one out of bounds."""
    bad = False
    for path, quantity in _durations(spec).items():
        try:
            duration(quantity)
        except QuantityError as error:
            bad = True
            yield SpecError.at(path, error)
    if not bad:
        yield from _bounds(spec)
    amounts: dict[str, int] = {}
    for name, quantity in spec.demand.items():
        try:
            amounts[name] = resource(name, quantity)
        except QuantityError as error:
            yield SpecError(f"demand.{error}", code=f"spec.demand.{error.problem}")
    if not any(amounts.values()) and len(amounts) == len(spec.demand):
        yield SpecError("demand: at least one resource must be more than 0", code="spec.demand.all_zero")
    for name, least in LEAST_AMOUNTS.items():
        if 0 < amounts.get(name, 0) < least:
            little = f"{humanize(name, amounts[name])} is too little for a container"
            yield SpecError(
                f"demand.{name}: {little}; write at least {humanize(name, least)}", code="spec.demand.too_small"
            )


def _bounds(spec: AppSpec) -> Iterator[SpecError]:
    if spec.grace_s > LONGEST_GRACE_S:
        text = f"grace: {spec.grace!r} is longer than an hour; save a checkpoint more often and take a shorter grace"
        yield SpecError(text[:500], code="spec.grace.too_long")
    if spec.stop_signal.before_s > LONGEST_GRACE_S:
        text = f"stop_signal.before: {spec.stop_signal.before!r} is longer than an hour; take a shorter time"
        yield SpecError(text[:500], code="spec.stop_signal.before.too_long")
    if spec.stop_signal.before_s and spec.stop_signal.signal == "SIGTERM":
        text = "stop_signal.before: SIGTERM itself comes then; name the signal before it, such as SIGUSR1, or raise `grace`"
        yield SpecError(text, code="spec.stop_signal.before.sigterm")
    if not spec.deadlines.live_s:
        text = "deadlines.live: 0 would leave no time for a live resize; write a time such as 60s"
        yield SpecError(text, code="spec.deadlines.live.zero")
    if spec.work is not None and not spec.work.seconds:
        text = "work.mini_batch: 0 would be no work at all; write a time such as 200ms"
        yield SpecError(text, code="spec.work.mini_batch.zero")


def can_be_read(spec: AppSpec) -> bool:
    """Return whether every quantity is one.  `check_spec` makes sure of it; a log may hold other specs, and no reader may fail
    on them."""
    try:
        for quantity in _durations(spec).values():
            duration(quantity)
        spec.resources()
        starts_at(spec, 0)
    except QuantityError:
        return False
    return True


def _durations(spec: AppSpec) -> dict[str, Quantity]:
    """Return the durations by path, without empty deadlines."""
    retries, deadlines = spec.retries, spec.deadlines
    found: dict[str, Quantity] = {
        "grace": spec.grace,
        "stop_signal.before": spec.stop_signal.before,
        "retries.backoff": retries.backoff,
        "retries.longest": retries.longest,
        "retries.reset": retries.reset,
        "deadlines.start": deadlines.start,
        "deadlines.progress": deadlines.progress,
        "deadlines.live": deadlines.live,
        "max_runtime": spec.max_runtime,
    }
    if spec.utility is not None:
        found["utility.target"] = spec.utility.target
    if spec.work is not None:
        found |= {"work.mini_batch": spec.work.mini_batch, "work.exchange": spec.work.exchange}
    return {path: value for path, value in found.items() if value != "" or path not in _MAY_BE_EMPTY}


_MAY_BE_EMPTY = ("stop_signal.before", "deadlines.start", "deadlines.progress", "max_runtime")
