"""What nodes do for containers again and again (`ContainerDelayed`), for people and in words.

It decides nothing.  A container has one delay at a time, the last one stated, until it is over or the container has
started or ended; so the state grows by no more than one text for each container.  A delay counts from a container of
this node, also from one that is prepared before its release.  What fails comes before what only takes long, and of
these what has lasted longest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.folded import APP, APPLIED, Effect, ignored
from dorm.core.generation import Delay
from events import subjects
from events.limits import clipped
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dorm.core.generation import Container, Generation
    from dorm.core.state import App, State
    from events import kinds as k
    from events.log.records import Record


# --- the fold ---------------------------------------------------------------------------------------------------------

_OF_RUNNING = ("tell", "stop", "report")
"""Things that are done for a container that runs."""


def container_delayed(state: State, event: k.ContainerDelayed, record: Record) -> Effect:
    """Note or drop the delay of a container on this node, also of one that is prepared before its release."""
    app, node = state.apps.get(event.app), state.nodes.get(event.node)
    generation = app.generations.get(event.generation) if app is not None else None
    own = subjects.who_of(record.subject) == subjects.token(event.node)
    if not own or generation is None or node is None or node.identity != event.identity:
        return ignored(state)
    container = _find(generation, event.slot)
    if container is None or container.node != event.node:
        return ignored(state)
    if container.state == "exited" or (container.state == "running" and event.doing not in _OF_RUNNING):
        return APPLIED  # It is for those who read the log.
    if event.over:
        container.delay = None
    else:
        since = max(0, state.time - int(event.for_s * SECOND))
        container.delay = Delay(event.doing, clipped(event.reason), since, event.failing)
    return APP


def _find(generation: Generation, slot: int) -> Container | None:
    container = generation.find(slot)
    if container is None and generation.change is not None:
        return generation.change.newcomers.get(slot)
    return container


# --- in words ---------------------------------------------------------------------------------------------------------

_FAILS = {
    "prepare": "can't make its place ready",
    "fetch": "can't fetch its project folder",
    "pull": "can't pull its image",
    "create": "can't create it",
    "start": "can't start it",
    "read": "can't read its checkpoints",
    "tell": "can't tell it of its members",
    "stop": "can't stop it",
    "remove": "can't remove it",
    "report": "can't report its end",
}
_LASTS = {
    "prepare": "makes its place ready",
    "fetch": "fetches its project folder",
    "pull": "pulls its image",
    "read": "waits for its checkpoint",
}
"""Things that only take long."""
_MINUTE = 60


def delays_of(app: App) -> Iterator[tuple[Container, Delay]]:
    """Yield the delayed containers of an app: of its generations in order, by slot."""
    for _, generation in sorted(app.generations.items()):
        for container in generation.all_containers():
            if container.delay is not None and container.state != "exited":
                yield container, container.delay


def delayed(state: State) -> Iterator[tuple[App, Container, Delay]]:
    """Yield all delayed containers, by app."""
    for _, app in sorted(state.apps.items()):
        for container, delay in delays_of(app):
            yield app, container, delay


def delay_words(node: str, delay: Delay) -> str:
    """`node-1 can't create it: invalid log driver`"""
    trouble = _FAILS[delay.doing] if delay.failing else _LASTS.get(delay.doing, "waits")
    return f"{node} {trouble}" + (f": {delay.reason}" if delay.reason else "")


def delay_shown(app: App, now: int) -> str:
    """Return what delays an app at `now` (UTC ns), and for how long: a failure before what only takes long, and of these
    what has lasted longest; "" if nothing does."""
    what = delay_without_time(app)
    if not what:
        return ""
    first = _first(app)
    assert first is not None
    return f"{what} ({_span(now - first[1].since)})"


def delay_without_time(app: App) -> str:
    """Return the same without its duration, which changes only if the delay does."""
    first = _first(app)
    if first is None:
        return ""
    container, delay = first
    same = sum(1 for _ in delays_of(app)) - 1
    more = f", and {same} more of its containers {'is' if same == 1 else 'are'} delayed" if same else ""
    return delay_words(container.node, delay) + more


def _first(app: App) -> tuple[Container, Delay] | None:
    return min(delays_of(app), key=lambda pair: (not pair[1].failing, pair[1].since, pair[0].slot), default=None)


def _span(ns: int) -> str:
    """`12 s`, `3 min`"""
    seconds = max(0, ns) // SECOND
    return f"{seconds} s" if seconds < 2 * _MINUTE else f"{seconds // _MINUTE} min"
