"""The story of an app or a node until a moment: what happened to it, in order, each chapter with its causes.

A log is read from where the story starts, not from its own start: if there are snapshots, the state at the moment shows when
the app was submitted, and the fold starts from the snapshot before that.  For a node, and for an app that has left the state,
that is unknown, so the whole log is folded (for a node: from `since` on, if given).  Only the story itself is kept.

    StoryError   there is no such app or node; the message lists similar names
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Literal

import msgspec

from dorm.core.snapshot import FOLDED_BY
from dorm.core.state import SCHEMA, State
from events.codec import decode
from events.kinds import Round
from events.sources import fingerprint
from replay import ReplayError
from replay.moments import AtSequence
from replay.story.app_teller import AppTeller
from replay.story.chapters import AppTotals, Chapter
from replay.story.explanation import Witness
from replay.story.node import NodeTeller, NodeTotals
from replay.travel import fold_on, state_at

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from dorm.core.folded import Folded, Observer
    from events.log.interface import ReadableLog
    from events.log.records import Record
    from replay import Progress
    from replay.moments import Moment
    from replay.simulator.forks.starting import Outlook
    from replay.travel import Seen

    Follower = Witness | AppTeller | NodeTeller | Outlook
    At = Callable[[int], Awaitable[State]]
    """Returns the state after a record, which is the caller's own."""


MARGIN = 10_000
"""Most records before its submission that are folded for an app's story: some tens of milliseconds."""


class StoryError(ReplayError):
    """No such app or node; one line for people."""

    code = "name.not_found"


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `dorm story -o json`.  Empty fields of chapters are left out."""

    name: str
    id: str
    """An app's id; a node's name."""
    kind: Literal["app", "node"]
    seq: int
    """The log's sequence where the story ends."""
    at: int
    """The log time there (UTC ns)."""
    totals: AppTotals | NodeTotals | None
    """None for an app that was never accepted."""
    chapters: list[Chapter]


async def follow(
    log: ReadableLog,
    name: str,
    followers: Sequence[Follower],
    moment: Moment | None = None,
    *,
    since: Moment | None = None,
    progress: Progress | None = None,
) -> State:
    """Show followers the log from where the story of an app of this name starts; return the state at the moment.

    `since` overrides that start.  Raises as `replay.travel.state_at` does.
    """
    start = await log.start()
    if since is None and not start and not await _has_snapshots(log):
        return await state_at(log, moment, progress=progress, seen=together(followers))

    async def at(seq: int) -> State:
        return await state_at(log, AtSequence(seq), progress=progress) if seq else State()

    final = await state_at(log, moment, progress=progress)
    end, app = final.seq, final.find_app(name)
    if since is not None:
        base = await state_at(log, since, progress=progress)
        if base.seq > end:
            text = f"the start of the story, sequence {base.seq}, is after its end, {end}"
            raise StoryError(text, code="moment.end_before_start")
    else:
        base = await base_of(log, app.seq, start, at) if app is not None else await at(start)
    await begin(log, base, followers)
    await fold_on(log, base, end, progress=progress, seen=together(followers))
    return base


async def begin(log: ReadableLog, base: State, followers: Sequence[Follower]) -> None:
    """Let followers start from a state instead of the log's first record."""
    last = await _decision(log, base)
    for follower in followers:
        if isinstance(follower, Witness):
            follower.begin(base, last)
        else:
            follower.begin(base)


async def _has_snapshots(log: ReadableLog) -> bool:
    """Return whether there is a snapshot that this build uses; without one, each step back would fold the whole log again."""
    build = fingerprint(*FOLDED_BY)
    return any((info.core, info.build) == (SCHEMA, build) for info in await log.snapshots.infos())


def together(followers: Sequence[Observer]) -> Seen:
    """Combine the followers into one `seen`."""

    def seen(state: State, record: Record, folded: Folded) -> None:
        for follower in followers:
            follower.see(state, record, folded)

    return seen


async def base_of(log: ReadableLog, seq: int, start: int, at: At) -> State:
    """Return the state from which to follow an app that was submitted with this sequence, on a log that starts after `start`.
    Its first decision also answers events after the basis of the previous decision, which may be a little earlier."""
    state = await at(max(start, seq - 1))
    last = await _decision(log, state)
    event = decode(last) if last is not None else None
    basis = event.basis if isinstance(event, Round) else 0
    return await at(max(start, basis, seq - 1 - MARGIN)) if basis < state.seq else state


async def _decision(log: ReadableLog, state: State) -> Record | None:
    """Return the round of the last decision in a state."""
    return await log.record_at(state.figures.seq) if state.figures.seq > await log.start() else None


async def tell(
    log: ReadableLog,
    name: str,
    moment: Moment | None = None,
    *,
    since: Moment | None = None,
    node: bool = False,
    progress: Progress | None = None,
) -> Story:
    """Return the story of the newest app of this name or id, or else of the node of this name; with `node`, only of the node.

    Raises StoryError if there was none until then, and as `follow` does.
    """
    app_teller, node_teller, witness = AppTeller(name), NodeTeller(name), Witness(name)
    followers: list[Follower] = [node_teller, witness] if node else [app_teller, node_teller, witness]
    state = await follow(log, "" if node else name, followers, moment, since=since, progress=progress)
    if (story := story_of(app_teller, state) or story_of(node_teller, state)) is not None:
        return story
    known = (
        sorted(state.nodes) if node else sorted({*witness.names, *state.nodes, *(a.name for a in state.apps.values())})
    )
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else "; `dorm state` lists them"
    what = "node" if node else "app or node"
    text = f"there was no {what} {name!r} up to sequence {state.seq}{hint}"
    raise StoryError(text, code="node.not_found" if node else "name.not_found")


def story_of(teller: AppTeller | NodeTeller, state: State) -> Story | None:
    """Return the story that a teller has of the log up to a state; None if there is no such app or node."""
    if not teller.known:
        return None
    app = isinstance(teller, AppTeller)
    name = (teller.name or teller.wanted) if isinstance(teller, AppTeller) else teller.wanted
    return Story(
        name=name,
        id=teller.id if isinstance(teller, AppTeller) else name,
        kind="app" if app else "node",
        seq=state.seq,
        at=state.time,
        totals=teller.totals(state),
        chapters=teller.story(),
    )
