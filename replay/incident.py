"""One folder about an incident, for a ticket: what changed before, what happened, who was affected, and that part of the log.

    IncidentError   a span without records

Everything in the folder follows from the log; of the machine that writes it, the folder has only Dorm's version.  Under
pseudonyms (`replay.export.anonymize`) the log is replaced first, so all files come from the disguised one.  The log's part is
written first, and everything else is read from it: a file of the folder can't say more than its log.  The folder appears
under its name only once it is complete, and only its owner can read it.

What operators, users, machines and masters did has one line each, in the order of the log.  Possible causes of an incident
and the incident itself are kept, and the usual is left out: progress, starts and stops of containers, releases.  Memory is
bounded: the first and the latest of each sort are kept, and the others are counted.

In the Markdown, texts of others (names, reasons, messages) stand in code spans, where Markdown, HTML and links mean nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import shutil
from collections import Counter, deque
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dorm.core.admission import name_of
from dorm.core.submissions import app_of_request
from events import kinds as k
from events.archive.segments import open_archive
from events.log.interface import time_of
from events.quantities import SECOND
from replay import ReplayError
from replay.diff import Diff, diff, headline, of_app, of_cluster, of_node, of_set_by, of_settings, settings_between
from replay.export.anonymize import anonymized
from replay.export.export import export
from replay.export.selection import Selection
from replay.moments import AtSequence, AtTime, not_in_log
from replay.page.recording import record
from replay.reading import cluster_name
from replay.story import story_words
from replay.story.app_teller import AppTeller
from replay.story.node import NodeTeller
from replay.story.settings_causes import SettingsWatch, lost_because, settings_changed
from replay.story.story import Story, begin, story_of, together
from replay.story.surroundings import name_in
from replay.travel import fold_on, state_at
from replay.whole_file import ExportError, in_thread
from replay.words import moment, span

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from dorm.core.folded import Folded
    from dorm.core.state import State
    from events.log.interface import ReadableLog
    from events.log.records import Record
    from replay import Progress
    from replay.moments import Moment
    from replay.story.chapters import Chapter


# --- incident ---------------------------------------------------------------------------------------------------------


class IncidentError(ReplayError):
    """A span without an incident to describe; the message is one line for users."""

    code = "incident.failed"


# --- happenings -------------------------------------------------------------------------------------------------------

Sort = Literal[
    "settings", "operators", "nodes", "masters", "policies", "submissions", "requests", "failures", "ends", "refusals"
]
SORTS: dict[Sort, str] = {
    "settings": "Settings",
    "operators": "Drains",
    "nodes": "Nodes",
    "masters": "Masters",
    "policies": "Policies",
    "submissions": "Submissions",
    "requests": "Cancellations and updates",
    "failures": "Failures",
    "ends": "Ends of apps",
    "refusals": "Refusals",
}
"""Titles in the order in which a reader looks for a cause."""
FIRST, LATEST = 20, 40
"""Happenings of each sort that are kept: the first ones and the latest."""


class Happening(msgspec.Struct, frozen=True):
    """One thing that happened."""

    position: str
    """`seq`, or `seq.index` in a round."""
    time: int
    """Log time (UTC ns)."""
    sort: Sort
    text: str


class Happened(msgspec.Struct, frozen=True):
    """What happened of one sort."""

    sort: Sort
    kept: list[Happening]
    omitted: int
    """Number of those that lie between the first and the latest that are kept."""


class Happenings:
    """Follows a fold from a state on."""

    def __init__(self, state: State) -> None:
        self._first: dict[str, list[Happening]] = {}
        self._latest: dict[str, deque[Happening]] = {}
        self._counts: Counter[str] = Counter()
        self._sets = SettingsWatch()
        self._sets.begin(state)
        self.apps: Counter[str] = Counter()
        """Weight of what happened to each app, by id: failures count more than changes."""
        self.nodes: Counter[str] = Counter()
        """The same by node."""
        self.builds: dict[str, None] = {}
        """Lines of masters and agents about their builds."""

    def see(self, state: State, record: Record, folded: Folded) -> None:
        """Follow one record after it was folded."""
        event = folded.event
        if isinstance(event, k.Round):
            if folded.outcome != "void":
                for index, fact in enumerate(event.events):
                    follow = _FACTS.get(type(fact))
                    if follow is not None:
                        follow(self, state, f"{state.seq}.{index}", fact, event)
            return
        handler = _RECORDS.get(type(event))
        if handler is not None and folded.outcome not in ("ignored", "forbidden", "unreadable"):
            handler(self, state, str(state.seq), event, folded)

    def all(self) -> list[Happened]:
        """Return what happened, by sort."""
        happenings = []
        for sort in SORTS:
            kept = [*self._first.get(sort, ()), *self._latest.get(sort, ())]
            if kept:
                happenings.append(Happened(sort, kept, self._counts[sort] - len(kept)))
        return happenings

    def _note(self, state: State, position: str, sort: Sort, text: str) -> None:
        happening = Happening(position, state.time, sort, " ".join(text.split()))
        self._counts[sort] += 1
        first = self._first.setdefault(sort, [])
        if len(first) < FIRST:
            first.append(happening)
        else:
            self._latest.setdefault(sort, deque(maxlen=LATEST)).append(happening)

    # --- clients, operators, agents -------------------------------------------------------------------------------------

    def _settings(self, state: State, position: str, event: k.PolicyChanged, folded: Folded) -> None:
        effect = self._sets.record(state, event)
        text = story_words.settings(event) if effect is None else effect.text
        consequence = settings_changed(state, event)
        if consequence and consequence not in text:
            text += f"; {consequence}"
        if folded.outcome == "refused" and not consequence:
            text += "; refused, at least in part"
        self._note(state, position, "settings", text)

    def _drain(self, state: State, position: str, event: k.NodeDrainRequested, folded: Folded) -> None:
        self.nodes[event.node] += 2
        self._note(state, position, "operators", story_words.drain(event))

    def _trust_requested(self, state: State, position: str, event: k.NodeTrustRequested, folded: Folded) -> None:
        self.nodes[event.node] += 2
        self._note(state, position, "operators", story_words.trust_requested(event))

    def _joined(self, state: State, position: str, event: k.NodeJoined, folded: Folded) -> None:
        self._build(event.build)
        self.nodes[event.node] += 1
        refused = ", and was refused: another machine holds the name" if folded.outcome == "refused" else ""
        self._note(state, position, "nodes", f"{event.node} joined with {story_words.amounts(event.capacity)}{refused}")

    def _left(self, state: State, position: str, event: k.NodeLeft, folded: Folded) -> None:
        self.nodes[event.node] += 2
        self._note(state, position, "nodes", f"{event.node} left: its agent shut down cleanly")

    def _submitted(self, state: State, position: str, event: k.AppSubmitted, folded: Folded) -> None:
        self._note(
            state, position, "submissions", f"{event.by} submitted {name_of(event.spec) or 'an app without a name'}"
        )

    def _cancelled(self, state: State, position: str, event: k.AppCancelRequested, folded: Folded) -> None:
        app = app_of_request(state, event.app, event.by)
        if app is not None:
            how = "killed" if event.kill else "cancelled"
            self.apps[app.id] += 2
            self._note(state, position, "requests", f"{event.by} {how} {app.name}{story_words.why(event.reason)}")

    def _updated(self, state: State, position: str, event: k.AppUpdated, folded: Folded) -> None:
        app = app_of_request(state, event.app, event.by)
        if app is not None:
            self.apps[app.id] += 2
            self._note(state, position, "requests", f"{event.by} changed {app.name}: {story_words.updated(event)}")

    def _gate(self, state: State, position: str, event: k.OfGates, folded: Folded) -> None:
        app = app_of_request(state, event.app, event.by)
        if app is not None:
            self.apps[app.id] += 2
            self._note(state, position, "requests", story_words.gate(event, app.name))

    def _exited(self, state: State, position: str, event: k.ContainerExited, folded: Folded) -> None:
        if event.asked or event.exit_code == 0:
            return
        self.apps[event.app] += 3
        self.nodes[event.node] += 1
        code = "" if event.exit_code is None else f" with exit code {event.exit_code}"
        where = f"slot {event.slot} of {name_in(state, event.app)} on {event.node}"
        self._note(state, position, "failures", f"{where} ended{code} ({event.reason}){story_words.why(event.message)}")

    # --- facts of masters -----------------------------------------------------------------------------------------------

    def _elected(self, state: State, position: str, fact: k.MasterElected, event: k.Round) -> None:
        self._build(fact.build)
        self._note(state, position, "masters", f"{event.by} was elected, epoch {fact.epoch}")

    def _node_lost(self, state: State, position: str, fact: k.NodeLost, event: k.Round) -> None:
        self.nodes[fact.node] += 5
        cause = lost_because(state, fact)
        because = f"; {cause.text} (record {cause.position})" if cause is not None else ""
        self._note(state, position, "nodes", f"{fact.node} was lost{because}")

    def _node_heard(self, state: State, position: str, fact: k.NodeRecovered, event: k.Round) -> None:
        self.nodes[fact.node] += 1
        self._note(state, position, "nodes", f"{fact.node} was heard again")

    def _lease_ended(self, state: State, position: str, fact: k.NodeLeaseEnded, event: k.Round) -> None:
        self.nodes[fact.node] += 3
        self._note(state, position, "nodes", f"the lease of {fact.node} ended, so nothing runs there any more")

    def _suspected(self, state: State, position: str, fact: k.NodeSuspected, event: k.Round) -> None:
        self.nodes[fact.node] += 5
        for app in fact.apps:
            self.apps[app] += 1
        self._note(state, position, "nodes", f"{fact.node} is {story_words.suspected(state, fact)}")

    def _trusted(self, state: State, position: str, fact: k.NodeTrusted, event: k.Round) -> None:
        self.nodes[fact.node] += 1
        self._note(state, position, "nodes", f"{fact.node} is {story_words.trusted(fact)}")

    def _policy_failed(self, state: State, position: str, fact: k.PolicyFailed, event: k.Round) -> None:
        if story_words.is_first_failure(state, fact):
            self._note(state, position, "policies", story_words.policy_failed(fact))

    def _rejected(self, state: State, position: str, fact: k.AppRejected, event: k.Round) -> None:
        what = f"the {fact.refused} of {fact.app or 'an app without a name'}"
        self._note(state, position, "refusals", f"{what} was refused{story_words.why(fact.reason)}")

    def _refused(self, state: State, position: str, fact: k.RecordsRefused, event: k.Round) -> None:
        for refusal in fact.records:
            self._note(
                state,
                position,
                "refusals",
                f"{refusal.of} by {refusal.who} was refused{story_words.why(refusal.reason)}",
            )

    def _failed(self, state: State, position: str, fact: k.GenerationFailed | k.MembersLost, event: k.Round) -> None:
        self.apps[fact.app] += 5
        what = (
            "failed, and is retried"
            if isinstance(fact, k.GenerationFailed)
            else f"lost {len(fact.lost)} of its members"
        )
        self._note(state, position, "failures", f"{name_in(state, fact.app)} {what}{story_words.why(fact.reason)}")

    def _ended(
        self, state: State, position: str, fact: k.AppCompleted | k.AppFailed | k.AppCancelled, event: k.Round
    ) -> None:
        self.apps[fact.app] += 8 if isinstance(fact, k.AppFailed) else 1
        how = type(fact).__name__.removeprefix("App").lower()
        self._note(
            state, position, "ends", f"{name_in(state, fact.app)} {how}{story_words.why(getattr(fact, 'reason', ''))}"
        )

    def _resized(self, state: State, position: str, fact: k.Resized, event: k.Round) -> None:
        for change in fact.changes:
            self.apps[change.app] += 2 if change.adjustment != "start" else 1

    def _build(self, build: str) -> None:
        if build and len(self.builds) < LATEST:
            self.builds[build] = None


_RECORDS: dict[type, Callable[[Happenings, State, str, Any, Folded], None]] = {
    k.PolicyChanged: Happenings._settings,
    k.NodeDrainRequested: Happenings._drain,
    k.NodeTrustRequested: Happenings._trust_requested,
    k.NodeJoined: Happenings._joined,
    k.NodeLeft: Happenings._left,
    k.AppSubmitted: Happenings._submitted,
    k.AppCancelRequested: Happenings._cancelled,
    k.AppUpdated: Happenings._updated,
    k.AppHoldRequested: Happenings._gate,
    k.AppReleaseRequested: Happenings._gate,
    k.ContainerExited: Happenings._exited,
}
_FACTS: dict[type, Callable[[Happenings, State, str, Any, k.Round], None]] = {
    k.MasterElected: Happenings._elected,
    k.NodeLost: Happenings._node_lost,
    k.NodeRecovered: Happenings._node_heard,
    k.NodeLeaseEnded: Happenings._lease_ended,
    k.NodeSuspected: Happenings._suspected,
    k.NodeTrusted: Happenings._trusted,
    k.PolicyFailed: Happenings._policy_failed,
    k.AppRejected: Happenings._rejected,
    k.RecordsRefused: Happenings._refused,
    k.GenerationFailed: Happenings._failed,
    k.MembersLost: Happenings._failed,
    k.AppCompleted: Happenings._ended,
    k.AppFailed: Happenings._ended,
    k.AppCancelled: Happenings._ended,
    k.Resized: Happenings._resized,
}


# --- telling ----------------------------------------------------------------------------------------------------------

MOST_APPS = 20
MOST_NODES = 10
"""Apps and nodes with a story: those with the most events."""


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """All text of the folder.  Times are log times (UTC ns)."""

    cluster: str
    before: int
    """Begin of the time before, in which changes are looked for."""
    begin: int
    end: int
    first: int
    """The sequence after which the log part of the folder begins."""
    split: int
    """The last sequence before the span."""
    last: int
    disguised: bool
    changed_before: list[Happened]
    happened: list[Happened]
    stories: list[Story]
    untold: int
    """Number of other apps and nodes that were affected."""
    diff: Diff
    builds: list[str]
    made_by: str


class Span(msgspec.Struct, frozen=True):
    """The places of an incident on its log."""

    first: int
    """The sequence after which the time before begins."""
    split: int
    last: int
    times: tuple[int, int, int]
    """The log times of the three."""


async def span_of(log: ReadableLog, since: Moment, until: Moment | None, before_s: float) -> Span:
    """Return where an incident lies.  Raises IncidentError for a span without records."""
    end = await log.end()
    if not end:
        raise IncidentError("the log is empty, so nothing has happened", code="log.empty")
    last, until_at = await _place(log, until, end)
    split, since_at = await _place(log, since, end)
    if split >= last:
        reason = "ends before it begins" if split > last else "has no records"
        code = "moment.end_before_start" if split > last else "incident.empty_span"
        raise IncidentError(f"the span {reason}; choose an earlier start, such as -1h", code=code)
    before_at = since_at - int(before_s * SECOND)
    first = max(await log.start(), min(split, await log.at_time(before_at)))
    return Span(first, split, last, (before_at, since_at, until_at))


async def _place(log: ReadableLog, moment: Moment | None, end: int) -> tuple[int, int]:
    """Return the last record at or before a moment, and its log time.  Raises MomentError."""
    start = await log.start()
    if moment is None or isinstance(moment, AtSequence):
        seq = end if moment is None else moment.seq
        if not start <= seq <= end:
            raise not_in_log(seq, start, end)
        return seq, await time_of(log, seq) or await time_of(log, 1)
    ends_at = await time_of(log, end)
    time = min(ends_at, moment.time if isinstance(moment, AtTime) else ends_at - moment.span)
    return await log.at_time(time), max(time, await time_of(log, start + 1))


async def tell(
    log: ReadableLog, span: Span, cluster: str, *, disguised: bool = False, progress: Progress | None = None
) -> Incident:
    """Return the story of the span.  Raises as `replay.travel.state_at`."""
    state = await state_at(log, AtSequence(span.first), progress=progress)
    earlier = Happenings(state)
    await fold_on(log, state, span.split, progress=progress, seen=earlier.see)
    before = await state_at(log, AtSequence(span.split))
    during = Happenings(before)
    await fold_on(log, state, span.last, progress=progress, seen=during.see)
    names = {app.id: app.name for moment_state in (before, state) for app in moment_state.apps.values()}
    apps, nodes = _most(during.apps, MOST_APPS), _most(during.nodes, MOST_NODES)
    builds = list(earlier.builds | during.builds)
    return Incident(
        cluster=cluster,
        before=span.times[0],
        begin=span.times[1],
        end=span.times[2],
        first=span.first,
        split=span.split,
        last=span.last,
        disguised=disguised,
        changed_before=earlier.all(),
        happened=during.all(),
        stories=await _stories(log, span, [name for name in apps if name in names], nodes, progress),
        untold=len(during.apps) + len(during.nodes) - len(apps) - len(nodes),
        diff=diff(before, state, await settings_between(log, before, state)),
        builds=builds,
        made_by=f"dorm {version('dorm')}",
    )


def _most(counts: Counter[str], number: int) -> list[str]:
    return [name for name, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:number]]


async def _stories(
    log: ReadableLog, span: Span, apps: list[str], nodes: list[str], progress: Progress | None
) -> list[Story]:
    """Tell all stories by one fold, from the time before on."""
    tellers: list[AppTeller | NodeTeller] = [*map(AppTeller, apps), *map(NodeTeller, nodes)]
    state = await state_at(log, AtSequence(span.first))
    await begin(log, state, tellers)
    await fold_on(log, state, span.last, progress=progress, seen=together(tellers))
    return [story for teller in tellers if (story := story_of(teller, state)) is not None]


# --- readme -----------------------------------------------------------------------------------------------------------

_UNSAFE = re.compile(r"[^\x20-\x7e\u00a0-\u1fff\u2070-\u27bf\u3040-\uffef]")
"""Everything but printable characters; what reorders text is not among these."""


def plain(text: str) -> str:
    """Return untrusted text as a code span of one line."""
    line = _UNSAFE.sub("\ufffd", " ".join(text.split())).replace("`", "'")
    return f"`{line}`" if line else "` `"


def readme(incident: Incident, files: Sequence[str]) -> str:
    """Return README.md: what changed before, what happened, and what is in the folder."""
    length = span((incident.end - incident.begin) / SECOND)
    before = span((incident.begin - incident.before) / SECOND)
    parts = [
        f"# Incident on cluster {plain(incident.cluster)}\n",
        f"{moment(incident.begin)} to {moment(incident.end)} ({length}), records {incident.split + 1} to {incident.last}.\n",
    ]
    if incident.disguised:
        parts.append("Names are pseudonyms, and texts that people or programs wrote are withheld.\n")
    parts.append(f"## What changed before ({before})\n")
    parts.append(_happened(incident.changed_before, "Nothing: no setting, drain, node, master or submission changed."))
    parts.append("## What happened\n")
    parts.append(_happened(incident.happened, "Nothing but decisions, starts, stops and progress."))
    parts.append("## Who is concerned\n")
    parts.append(_concerned(incident))
    parts.append("## In this folder\n")
    parts.append("\n".join(f"* {_FILES[name]}" for name in files if name in _FILES) + "\n")
    parts.append("## Versions\n")
    parts.append(
        "\n".join([f"* made by {incident.made_by}", *(f"* on the log: {plain(build)}" for build in incident.builds)])
    )
    return "\n".join(parts) + "\n"


_FILES = {
    "log.dorm": "`log.dorm`: the log of this time and of the time before.  Every command with `--file` reads it: "
    "`dorm replay open log.dorm`, `dorm explain APP --at SEQ --file log.dorm`, `dorm replay verify --file log.dorm`",
    "timeline.html": "`timeline.html`: the dashboard of that time, for a browser, without network",
    "stories.md": "`stories.md`: what happened to each app and node concerned, and why",
    "diff.md": "`diff.md`: the difference between the start and the end",
    "incident.json": "`incident.json`: all of this for programs; times are UTC nanoseconds",
}


def stories(incident: Incident) -> str:
    """Return stories.md."""
    parts = ["# Stories\n"]
    if not incident.stories:
        parts.append("No app or node was concerned.")
    for story in incident.stories:
        parts.append(f"## {story.kind} {plain(story.name)}\n")
        parts += [_chapter(chapter, incident.begin) for chapter in story.chapters]
        parts.append("")
    return "\n".join(parts) + "\n"


def difference(change_of: Diff) -> str:
    """Return diff.md."""
    parts = ["# What differs between the start and the end\n", f"{headline(change_of)}\n"]
    sections = {
        "Apps": [f"{plain(thing.name)} {plain(of_app(thing))}" for thing in change_of.apps],
        "Nodes": [f"{plain(thing.name)} {plain(of_node(thing))}" for thing in change_of.nodes],
        "Settings": [plain(text) for text in (*of_settings(change_of.settings), *map(of_set_by, change_of.set_by))],
        "Cluster": [plain(of_cluster(change)) for change in change_of.cluster],
    }
    for title, lines in sections.items():
        if lines:
            parts += [f"## {title}\n", *(f"* {line}" for line in lines), ""]
    if change_of.same:
        parts.append("Nothing.")
    return "\n".join(parts) + "\n"


def _happened(happened: Sequence[Happened], nothing: str) -> str:
    if not happened:
        return f"{nothing}\n"
    parts = []
    for line in happened:
        parts.append(f"**{SORTS[line.sort]}**\n")
        for index, happening in enumerate(line.kept):
            if line.omitted and index == FIRST:
                parts.append(f"* … {line.omitted:,} more …")
            parts.append(f"* {_clock(happening.time)} ({happening.position}) {plain(happening.text)}")
        parts.append("")
    return "\n".join(parts)


def _concerned(incident: Incident) -> str:
    apps = [plain(story.name) for story in incident.stories if story.kind == "app"]
    nodes = [plain(story.name) for story in incident.stories if story.kind == "node"]
    lines = [f"* apps: {', '.join(apps) or 'none'}", f"* nodes: {', '.join(nodes) or 'none'}"]
    if incident.untold > 0:
        lines.append(f"* and {incident.untold:,} more, to which less happened")
    return "\n".join(lines) + "\n"


def _chapter(chapter: Chapter, begin: int) -> str:
    when = f"{_clock(chapter.time)}{'' if chapter.time >= begin else ' (before)'} ({chapter.position})"
    causes = "".join(f"\n  * ← {cause.position} {plain(cause.text)}" for cause in chapter.causes)
    return f"* {when} {plain(chapter.text)}{causes}"


def _clock(time: int) -> str:
    return moment(time).removesuffix(" UTC")


# --- folder -----------------------------------------------------------------------------------------------------------

README, LOG, PAGE, STORIES, DIFF, DOCUMENT = (
    "README.md", "log.dorm", "timeline.html", "stories.md", "diff.md", "incident.json",
)  # fmt: skip
_PLAIN = "plain.dorm"
"""The log's part before names are replaced; it is removed before the folder appears."""


async def write(
    log: ReadableLog,
    folder: Path,
    since: Moment,
    until: Moment | None = None,
    *,
    before_s: float,
    disguised: bool,
    page: Callable[[bytes, str], str],
    progress: Progress | None = None,
) -> Incident:
    """Write the folder of what happened between two moments, and of `before_s` seconds before.  `page` returns the dashboard
    of a recording with a title.

    Raises IncidentError, ExportError if the folder exists or can't be written, MomentError, and what `log.read` raises.
    """
    span = await span_of(log, since, until, before_s)
    async with _whole_folder(folder) as unfinished:
        await _write_log(log, unfinished, span, disguised=disguised, progress=progress)
        part = await open_archive(unfinished / LOG)
        try:
            cluster = await cluster_name(part)
            incident = await tell(part, span, cluster, disguised=disguised, progress=progress)
            recording = await record(part, f"{cluster} · incident", AtSequence(span.first), AtSequence(span.last))
        finally:
            await part.close()
        await in_thread(
            _write_texts, unfinished, incident, lambda: page(msgspec.json.encode(recording), recording.title)
        )
    return incident


async def _write_log(log: ReadableLog, folder: Path, span: Span, *, disguised: bool, progress: Progress | None) -> None:
    selection = Selection(since=AtSequence(span.first + 1), until=AtSequence(span.last))
    await export(log, folder / (_PLAIN if disguised else LOG), selection=selection, progress=progress)
    if not disguised:
        return
    plain = await open_archive(folder / _PLAIN)
    try:
        await export(await anonymized(plain, progress=progress), folder / LOG, progress=progress)
    finally:
        await plain.close()
    await asyncio.to_thread((folder / _PLAIN).unlink)


def _write_texts(folder: Path, incident: Incident, page: Callable[[], str]) -> None:
    texts = {
        PAGE: page(),
        STORIES: stories(incident),
        DIFF: difference(incident.diff),
        DOCUMENT: json.dumps(msgspec.to_builtins(incident), indent=2) + "\n",
        README: readme(incident, (README, LOG, PAGE, STORIES, DIFF, DOCUMENT)),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8", "backslashreplace", newline="\n")


@contextlib.asynccontextmanager
async def _whole_folder(folder: Path) -> AsyncIterator[Path]:
    """Yield a folder to fill, which gets its name if the body ends without an exception.  Raises ExportError."""
    unfinished = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.unfinished")
    try:
        await in_thread(_create, unfinished, folder)
        yield unfinished
        await in_thread(_put_in_place, unfinished, folder)
    except OSError as error:
        raise ExportError(f"{folder}: {error.strerror or error}") from None
    finally:
        await in_thread(shutil.rmtree, unfinished, True)


def _create(unfinished: Path, folder: Path) -> None:
    _check_new(folder)
    unfinished.mkdir(mode=0o700)


def _put_in_place(unfinished: Path, folder: Path) -> None:
    for path in (*unfinished.iterdir(), unfinished):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    _check_new(folder)
    unfinished.rename(folder)


def _check_new(folder: Path) -> None:
    if os.path.lexists(folder):
        raise ExportError(f"{folder} already exists; choose another name with -o", code="file.exists")
