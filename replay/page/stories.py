"""The parts of a recording about single apps and nodes: their stories, and the reason for each app's containers, at any
moment.

In a second fold, one teller follows each app and node, and each examines nearly every record.  On long logs, therefore,
only those with the most events have one; their number follows from the log's length alone.  An explanation and
a speed curve are taken when an app's situation changes, and thinned if that is often.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from dorm.core.gates import reason_of
from events import kinds as k
from replay.moments import AtSequence
from replay.story.app_teller import AppTeller
from replay.story.chapters import Chapter
from replay.story.explanation import ExplainError, Witness, explain
from replay.story.known_speed import SpeedCurve
from replay.story.node import NodeTeller
from replay.travel import fold, state_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.core.folded import Folded
    from dorm.core.state import App, State
    from events.log.interface import ReadableLog
    from events.log.records import Record
    from replay import Progress
    from replay.timeline.lanes import Timeline

MOST_APPS = 200
MOST_NODES = 100
"""Most apps and nodes with a story."""
MOST_LOOKS = 6_000_000
"""Records times tellers: seconds of one core."""
MOST_CHAPTERS = 200
"""Most chapters of a story: the last; fewer if there are many stories."""
ALL_CHAPTERS = 12_000
"""About the largest number of chapters of all stories together: a few megabytes before compression."""
MOST_TURNS = 24
"""Most moments of an app at which it is explained; fewer if there are many apps."""
ALL_TURNS = 2000
MOST_EXPLAINING = 40_000_000
"""Explanations times the cluster's apps and nodes: each computes all of their shares."""
_BULK = (k.AppProgressed, k.AppCheckpointed)
_OF_AN_APP = (k.ContainerStarted, k.ContainerExited, k.MembershipChanged)


class StoryTold(msgspec.Struct, frozen=True):
    """An app's or a node's story until the recording's end."""

    earlier: int
    """Number of chapters that came before these."""
    chapters: list[Chapter]


class Turn(msgspec.Struct, frozen=True):
    """An app's situation from a moment on."""

    position: str
    text: str
    """The reason for its containers."""
    speed: SpeedCurve | None
    """Known speed; None for an app that has ended or pauses."""


class Stories(msgspec.Struct, frozen=True):
    """Stories of apps and nodes."""

    apps: dict[str, StoryTold]
    nodes: dict[str, StoryTold]
    turns: dict[str, list[Turn]]
    """Turns by app, in the log's order."""
    notes: list[str]
    """The omissions, in sentences."""


async def stories(
    log: ReadableLog, begin: int, last: int, picture: Timeline, *, progress: Progress | None = None
) -> Stories:
    """Return what happened to the apps and nodes of a picture between two sequences.  Raises what `log.read` raises, and
    GapError."""
    state = await state_at(log, AtSequence(begin))
    decided = await _decision(log, state)
    telling = await asyncio.to_thread(_Telling, state, decided, last, picture)
    if last > begin and telling.any:
        async with aclosing(log.read(after=begin)) as batches:
            async for batch in batches:
                reached = await asyncio.to_thread(fold, state, batch, last, seen=telling.see)
                if progress:
                    progress(state.seq, last)
                if reached:
                    break
    return await asyncio.to_thread(telling.done, state)


async def _decision(log: ReadableLog, state: State) -> Record | None:
    """Return the round of the last decision before a state, None if the log no longer holds it."""
    seq = state.figures.seq
    return await log.record_at(seq) if seq > await log.start() else None


class _Telling:
    """Observes the fold for all of them."""

    def __init__(self, state: State, decided: Record | None, last: int, picture: Timeline) -> None:
        self._picture = picture
        room = max(12, MOST_LOOKS // max(last - state.seq, 1))
        lanes = sorted(
            picture.apps.values(),
            key=lambda lane: (lane.failures + (lane.ended == "failed"), len(lane.adjustments), len(lane.phases)),
            reverse=True,
        )
        nodes = sorted(
            picture.nodes.values(),
            key=lambda node: (len(node.conditions), sum(map(len, node.held.values()))),
            reverse=True,
        )
        self._apps = {lane.id: AppTeller(lane.id) for lane in lanes[: min(MOST_APPS, room // 3)]}
        self._nodes = {node.id: NodeTeller(node.id) for node in nodes[: min(MOST_NODES, room // 3)]}
        most = min(MOST_TURNS, max(4, ALL_TURNS // max(len(self._apps), 1)))
        self._turns = {app: _Turns(app, most) for app in self._apps}
        self._left = MOST_EXPLAINING
        for app in self._apps.values():
            app.begin(state)
        for node in self._nodes.values():
            node.begin(state)
        for turns in self._turns.values():
            turns.witness.begin(state, decided)
            self._look(state, turns)

    @property
    def any(self) -> bool:
        """Whether any app or node is followed."""
        return bool(self._apps or self._nodes)

    def see(self, state: State, record: Record, folded: Folded) -> None:
        event = folded.event
        if isinstance(event, _BULK):
            teller = self._apps.get(event.app)
            if teller is not None:
                teller.see(state, record, folded)
            return
        for app in self._apps.values():
            app.see(state, record, folded)
        for node in self._nodes.values():
            node.see(state, record, folded)
        of_round = isinstance(event, k.Round)
        for turns in self._turns.values():
            turns.witness.see(state, record, folded)
            if of_round or (isinstance(event, _OF_AN_APP) and event.app == turns.app):
                self._look(state, turns)

    def _look(self, state: State, turns: _Turns) -> None:
        app = state.apps.get(turns.app)
        if app is None or not turns.new(app, state.time) or self._left <= 0:
            return
        self._left -= len(state.apps) + len(state.nodes) + 1
        turns.take(state)

    def done(self, state: State) -> Stories:
        for turns in self._turns.values():
            turns.finish(state)
        notes = []
        for what, chapters, there in (
            ("apps", self._apps, self._picture.apps), ("nodes", self._nodes, self._picture.nodes),
        ):  # fmt: skip
            if len(chapters) < len(there):
                notes.append(
                    f"Stories of {len(chapters)} of {len(there)} {what} are told: those to which most happened."
                )
        most = min(MOST_CHAPTERS, max(20, ALL_CHAPTERS // max(len(self._apps) + len(self._nodes), 1)))
        return Stories(
            apps={name: _told(teller.story(), most) for name, teller in self._apps.items() if teller.known},
            nodes={name: _told(teller.story(), most) for name, teller in self._nodes.items() if teller.known},
            turns={name: turns.found for name, turns in self._turns.items() if turns.found},
            notes=notes,
        )


class _Turns:
    """The situations of one app, thinned to a bounded number."""

    def __init__(self, app: str, most: int) -> None:
        self.app = app
        self._most = most
        self.witness = Witness(app)
        self.found: list[Turn] = []
        self._key: tuple[object, ...] = ()
        self._stride = 1
        self._skipped = 0

    def new(self, app: App, now: int) -> bool:
        """Return whether its situation has changed and is due to be recorded."""
        reason = reason_of(app, now)
        code = reason.code if reason is not None else ""
        key = (app.generation, app.phase, code, app.n_min, app.n_max, app.weight)
        if key == self._key:
            return False
        self._key = key
        self._skipped += 1
        return self._skipped >= self._stride

    def take(self, state: State) -> None:
        self._skipped = 0
        self.found.append(_turn(state, self.witness))
        if len(self.found) > self._most:
            del self.found[1::2]
            self._stride *= 2

    def finish(self, state: State) -> None:
        """Take the last situation, if it was skipped."""
        if self._skipped and self.app in state.apps:
            self.take(state)


def _turn(state: State, witness: Witness) -> Turn:
    try:
        explanation = explain(state, witness, state.time)
    except ExplainError:  # Only its submission is known.
        return Turn(str(state.seq), "", None)
    return Turn(str(state.seq), explanation.text, explanation.speed)


def _told(chapters: Sequence[Chapter], most: int) -> StoryTold:
    """Keep the page's part of the last chapters."""
    shown = chapters[-most:]
    return StoryTold(
        len(chapters) - len(shown),
        [
            msgspec.structs.replace(chapter, partition=None, changed=None, work=None, exit=None, totals=None)
            for chapter in shown
        ],
    )
