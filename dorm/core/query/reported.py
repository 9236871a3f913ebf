"""The newest that apps have reported: what the log has, or, if that is newer, the stream of progress beside it.

Pure.  A state follows from the log alone; newer reports from the stream are only shown to people, and decide nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from events import subjects
from events.codec import decode
from events.kinds import AppProgressed, LossIs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dorm.core.state import App, Doubted
    from events.log.records import Record


class Reported(msgspec.Struct, frozen=True):
    """One report of the stream."""

    time: int
    """When it was stored (UTC ns)."""
    who: str
    """The subject token of the node that published it."""
    event: AppProgressed


class Shown(msgspec.Struct, frozen=True):
    """How far an app is, as it reported last."""

    step: int
    loss: float | None
    loss_is: LossIs
    samples_per_s: float | None
    at: int
    """When it reported progress or a checkpoint last, in its present generation (UTC ns); 0 if it has not."""


def doubt_shown(app: App) -> dict[str, Any] | None:
    """Return why the app's last checkpoint may be incomplete, with `text` and `advice` for people; None if nothing says
    so."""
    doubted = app.doubt
    if doubted is UNSET or app.ended == "completed":
        return None
    what = doubted.what
    moved = f", and moved to {what.aside}" if what.aside else ""
    advice = (
        "" if what.aside else f"`dorm restart {app.name} --fall-back` sets it aside and resumes from the one before"
    )
    if not what.aside and not what.before:
        advice = "no earlier one is there; to keep one, save under another name, then rename the complete file"
    return {
        "files": list(what.files),
        "more": what.more,
        "before": what.before,
        "aside": what.aside,
        "generation": doubted.generation,
        "slot": doubted.slot,
        "how": doubted.how,
        "text": doubt_text(doubted, app.checkpoint) + moved,
        "advice": advice,
    }


def doubt_text(doubted: Doubted, step: int | None) -> str:
    """Return which files changed, and when; `step` is that of the last reported checkpoint."""
    files = [*doubted.what.files, *([f"{doubted.what.more} more"] if doubted.what.more else [])]
    named = ", ".join(files[:-1]) + f" and {files[-1]}" if len(files) > 1 else "".join(files)
    container = f"slot {doubted.slot} of generation {doubted.generation}"
    when = {
        "killed": f"when {container} was killed",
        "ended": f"before {container} ended",
        "found": f"before generation {doubted.generation} started",
    }
    return f"{named} changed after the last reported checkpoint (step {step}), {when[doubted.how]}"


Newest = dict[str, Reported]
"""By the app's id."""


def newest_of(records: Iterable[Record]) -> Newest:
    """Return the newest report of each app; records that hold none are left out."""
    found: Newest = {}
    for record in records:
        event = decode(record)
        if isinstance(event, AppProgressed):
            before = found.get(event.app)
            if before is None or record.time >= before.time:
                found[event.app] = Reported(record.time, subjects.who_of(record.subject), event)
    return found


def shown(app: App, newest: Mapping[str, Reported] | None = None) -> Shown:
    """Return how far an app is.  A report counts if it is of the present generation, from a node that has a part of it,
    and newer than the log's."""
    generation = app.generations.get(app.generation)
    at = 0
    if generation is not None:
        at = max(generation.checkpointed_at, generation.pace.last_at if generation.pace is not None else 0)
    loss_is: LossIs = app.loss_is if isinstance(app.loss_is, str) else ""
    known = Shown(app.step, app.loss, loss_is, app.samples_per_s, at)
    found = newest.get(app.id) if newest else None
    if found is None or generation is None or app.ended or found.time <= at:
        return known
    event = found.event
    here = any(subjects.token(one.node) == found.who for one in generation.all_containers())
    if event.generation != generation.number or not here:
        return known
    loss = event.loss if event.loss is not None or event.loss_is else known.loss
    return Shown(
        step=event.step,
        loss=loss,
        loss_is=event.loss_is if event.loss is not None or event.loss_is else known.loss_is,
        samples_per_s=event.samples_per_s if event.samples_per_s is not None else known.samples_per_s,
        at=found.time,
    )
