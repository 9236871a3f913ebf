"""What apps report in their progress files: progress, checkpoints, requests for a size, and lines that could not be used.

The log has a part of an app's reports (`AppProgressed`), and most logs consist of them for the most part.  What follows
from them depends only on the first and the last report of a stretch, and not on how many are between them; so agents
may leave out any in the middle.

    checkpoint   it counts if a node with a part of the generation reports it, and if it is in the folder that counts
                 for the app (`dorm.core.shared_folder`): the next generation starts from it.  A later checkpoint ends a
                 doubt about the earlier one
    doubt        files of the last checkpoint changed after it was reported, as a node found when a container ended or
                 before one started.  The next generation may have read a half of it, so its exit code 0 alone does not
                 complete the app (`dorm.core.failures.unproven`)
    step back    the app restarted its count, so the pace begins again

The stream of progress next to the log may have newer reports (`Reported`): they are shown to people, and decide nothing.
A state follows from the log alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.batches import note_noise
from dorm.core.containers import note_resumed, note_work
from dorm.core.effects import mark_dirty
from dorm.core.folded import APP, Effect, ignored
from dorm.core.shared_folder import counts_in
from dorm.core.sizes import request, requested
from dorm.core.state import Doubted, Pace, SkippedLines
from events import kinds as k
from events import subjects
from events.codec import decode
from events.kinds import AppProgressed, LossIs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dorm.core.state import App, Generation, State
    from events.log.records import Record


# --- the fold ---------------------------------------------------------------------------------------------------------


def app_checkpointed(state: State, event: k.AppCheckpointed, record: Record) -> Effect:
    """Accept a checkpoint from a node that has a part of this generation, if it is in the folder that counts for the app: the
    next generation starts from it."""
    try:
        app = state.apps[event.app]
        generation = app.generations[event.generation]
    except KeyError:
        return ignored(state)
    part = _part_of(generation, subjects.who_of(record.subject))
    node = state.nodes.get(part)
    folder = node.checkpoints if node is not None else ""
    if not part or not counts_in(state, app, generation, folder):
        return ignored(state)
    app.checkpoint = step = event.step
    app.checkpoint_in = folder
    if app.doubt is not None and event.generation >= app.doubt.generation:
        app.doubt = None
    if step > app.step:
        app.step = step
    generation.checkpointed_at = state.time
    _works(state, app, generation)
    note_resumed(state, app, event.generation, event.step)
    return APP


def _works(state: State, app: App, generation: Generation) -> None:
    """Note that the app itself reports work."""
    app.reports_progress = True
    if not generation.worked:
        note_work(state, app, generation)


def _part_of(generation: Generation, who: str) -> str:
    """Return the node with this token that has a container of the app, "" for none."""
    for container in generation.all_containers():
        if subjects.token(container.node) == who:
            return container.node
    return ""


def app_progressed(state: State, event: k.AppProgressed, record: Record) -> Effect:
    """Marks of progress are the bulk of many logs, so nothing is written here that does not change."""
    try:
        app = state.apps[event.app]
        generation = app.generations[event.generation]
    except KeyError:
        return ignored(state)
    app.step = step = event.step
    history = app.history
    if history and not history[-1].resumed_at:
        note_resumed(state, app, event.generation, event.step)
    # First and last are enough; a step back means that the app restarted its count.
    pace = generation.pace
    if pace is None:
        _works(state, app, generation)
    if pace is None or step < pace.last_step:
        generation.pace = Pace(state.time, step, state.time, step)
    else:
        pace.last_at, pace.last_step = state.time, step
    loss, samples = event.loss, event.samples_per_s
    if loss is not None:
        app.loss, app.loss_is = loss, ""
    elif event.loss_is:
        app.loss, app.loss_is = None, event.loss_is
    if samples is not None:
        app.samples_per_s = samples
    if event.noise is not None:
        note_noise(app, event.noise)
    return APP


def resize_requested(state: State, event: k.AppResizeRequested, record: Record) -> Effect:
    """Accept it from a node that has a part of the app's current generation, and note the changes."""
    app = state.apps.get(event.app)
    generation = app.generations.get(event.generation) if app else None
    if app is None or generation is None or app.ended or generation is not app.current or not generation.released:
        return ignored(state)
    who = subjects.who_of(record.subject)
    if not any(subjects.token(container.node) == who for container in generation.all_containers()):
        return ignored(state)
    before = requested(app, state.time)
    if not request(app, event.containers, event.reason, state.time):
        return ignored(state)
    after = requested(app, state.time)
    if (before and before[0]) != (after and after[0]):
        mark_dirty(state)
    return APP


def lines_skipped(state: State, event: k.ProgressLinesSkipped, record: Record) -> Effect:
    """Note it for people, of a generation that its node has a part of; the first example stays."""
    app = state.apps.get(event.app)
    generation = app.generations.get(event.generation) if app is not None else None
    if app is None or generation is None or not _part_of(generation, subjects.who_of(record.subject)):
        return ignored(state)
    known = app.skipped_lines
    if known is not None and (known.generation, known.slot) == (event.generation, event.slot):
        known.lines = max(known.lines, event.lines)
    elif known is None or known.generation != event.generation:
        app.skipped_lines = SkippedLines(event.generation, event.slot, event.lines, event.example, event.reason)
    return APP


# --- the newest reports, for people -----------------------------------------------------------------------------------


class Reported(msgspec.Struct, frozen=True):
    """One report of the stream."""

    time: int
    """Time at which it was stored (UTC ns)."""
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
    """Time at which it reported progress or a checkpoint last, in its present generation (UTC ns); 0 if it has not."""
    loss_step: int | None = None
    """The step of the loss, where it is not `step`: the last reports named none."""


def doubt_shown(app: App) -> dict[str, Any] | None:
    """Return why the app's last checkpoint may be incomplete, with `text` and `advice` for people; None if nothing says
    so."""
    doubted = app.doubt
    if doubted is None or app.ended == "completed":
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
"""Newest reports by the app's id."""


def newest_of(records: Iterable[Record]) -> Newest:
    """Return the newest report of each app; records that hold none are left out."""
    newest: Newest = {}
    for record in records:
        event = decode(record)
        if isinstance(event, AppProgressed):
            before = newest.get(event.app)
            if before is None or record.time >= before.time:
                newest[event.app] = Reported(record.time, subjects.who_of(record.subject), event)
    return newest


def shown(app: App, newest: Mapping[str, Reported] | None = None) -> Shown:
    """Return how far an app is, by its last report: step and loss are of one.  A report beside the log counts if it is of the
    present generation, from a node that has a part of it, and newer than the log's.  A checkpoint moves neither, although the
    next generation would start there: it says nothing of the loss, and may come before or after the report of its step."""
    known = _shown_by_log(app)
    generation = app.generations.get(app.generation)
    reported = newest.get(app.id) if newest else None
    if reported is None or generation is None or app.ended:
        return known
    event, pace = reported.event, generation.pace
    here = any(subjects.token(container.node) == reported.who for container in generation.all_containers())
    if event.generation != generation.number or not here or (pace is not None and reported.time <= pace.last_at):
        return known
    names = event.loss is not None or bool(event.loss_is)
    older = pace is not None and (known.loss is not None or bool(known.loss_is))
    return Shown(
        step=event.step,
        loss=event.loss if names or not older else known.loss,
        loss_is=event.loss_is if names or not older else known.loss_is,
        samples_per_s=event.samples_per_s if event.samples_per_s is not None else known.samples_per_s,
        at=max(known.at, reported.time),
        loss_step=known.step if older and not names else None,
    )


def _shown_by_log(app: App) -> Shown:
    """Return how far an app is by the last report on the log.  Of a generation that has reported none, only the checkpoint is
    known from which it started, or that it has made."""
    latest = app.generations.get(app.generation)
    at = 0
    if latest is not None:
        at = max(latest.checkpointed_at, latest.pace.last_at if latest.pace is not None else 0)
    for number in sorted(app.generations, reverse=True):
        generation = app.generations[number]
        if generation.pace is not None:
            return Shown(generation.pace.last_step, app.loss, app.loss_is, app.samples_per_s, at)
        if generation.released:
            break
    return Shown(app.step, None, "", app.samples_per_s, at)
