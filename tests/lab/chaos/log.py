"""The facts that `make chaos` reads from the log of an attacked cluster."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from dorm.core.evolve import evolve
from dorm.core.state import State
from events.kinds import AppAccepted, AppRejected, AppSubmitted, MasterElected, Resized, Round

if TYPE_CHECKING:
    from collections.abc import Iterable

    from events.kinds import Event
    from events.log.interface import ReadableLog


class Told(msgspec.Struct):
    """Facts of one log.  Times are log times (UTC ns), in order."""

    state: State = msgspec.field(default_factory=State)
    submitted: set[str] = set()
    """Ids of the submissions on it."""
    answered: dict[str, int] = {}
    """When a submission, by its id, was accepted or refused."""
    accepted: dict[str, str] = {}
    """App by submission."""
    elected: list[int] = []
    resized: dict[str, list[int]] = {}
    """When a decision changed a running app, by app."""
    waits: dict[str, list[int]] = {}
    """When a decision left an app without a place, by app."""


async def told_by(log: ReadableLog) -> Told:
    """Read a log from start to end.  Raises what a log raises."""
    told = Told()
    async with aclosing(log.read()) as batches:
        async for batch in batches:
            for record in batch:
                take(told, evolve(told.state, record).event)
    return told


def take(told: Told, event: Event) -> None:
    """Take one event that was already folded."""
    if isinstance(event, AppSubmitted):
        told.submitted.add(event.id)
    elif isinstance(event, Round):
        for fact in event.events:
            _take_fact(told, fact)
        if event.allocated:
            for app in told.state.live_apps():
                if app.phase == "waiting":
                    told.waits.setdefault(app.id, []).append(told.state.time)


def _take_fact(told: Told, fact: Event) -> None:
    now = told.state.time
    match fact:
        case AppAccepted():
            told.answered[fact.submission] = now
            told.accepted[fact.submission] = fact.app
        case AppRejected():
            told.answered[fact.submission] = now
        case MasterElected():
            told.elected.append(now)
        case Resized():
            for change in fact.changes:
                if change.from_generation:
                    told.resized.setdefault(change.app, []).append(now)
        case _:
            pass


def first_after(times: Iterable[int], moment: int) -> int | None:
    """Return the first of these times that is not before a moment."""
    return next((time for time in times if time >= moment), None)
