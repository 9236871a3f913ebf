"""What happened to an app or a node, and why: observers that have followed it, kept with the state at their record.

The first question about an app folds the log from its submission on; later records are folded with the next question.  So
a page that shows an app folds each record once, however long the app's life is.  Two lives of a name are kept: one that
follows the present, and one for readers of the past, who mostly move forward.  Where each app was submitted is read once,
from submissions alone, and continued when it is asked for again.

A life is used by one question at a time, in the threads for expensive work.  A reader who leaves does not end the work: a
thread cannot be cancelled, and the next reader continues from its result.  A fold that takes too long ends with a problem,
and the next request continues from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
from bisect import bisect_right
from collections import OrderedDict, deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from dorm.api.errors import Missing, Unavailable
from dorm.core.admission import app_id, name_of
from dorm.core.evolve import GapError, evolve
from events import subjects
from events.codec import decode
from events.kinds import AppSubmitted, NodeJoined
from events.log.records import LogError
from replay.simulator.forks.starting import Outlook
from replay.story.app import AppTeller
from replay.story.explanation import Witness
from replay.story.node import NodeTeller
from replay.story.story import base_of, begin, story_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.api.follower import Follower, RecentLog
    from dorm.api.moments import Moments
    from dorm.api.options import Limits
    from dorm.api.threads import Heavy
    from dorm.core.state import State
    from events.log.interface import ReadableLog
    from events.log.records import Record
    from replay.story.story import Follower as Observer
    from replay.story.story import Story


# --- where apps were submitted ----------------------------------------------------------------------------------------

_MOST_SUBMITTED = 100_000
"""Submissions that are kept, the latest."""
_SUGGESTED = 2000
"""Latest names among which similar ones are looked for."""


class Submitted:
    """The submissions of one log, by name and by the app's id."""

    def __init__(self, log: ReadableLog, cluster: str) -> None:
        self._log = log
        self._pattern = subjects.fact_pattern(cluster, AppSubmitted.__name__)
        self._lock = asyncio.Lock()
        self.forget()

    def forget(self) -> None:
        self._after = 0
        self._dropped = 0
        """The last submission that is not kept any more."""
        self._order: deque[tuple[int, str, str]] = deque()
        self._places: dict[str, list[int]] = {}
        """Sequences by name and by id, in order."""

    async def latest(self, name_or_id: str, upto: int) -> int | None:
        """Return the sequence of the latest submission up to a record, 0 if it may be any that is not kept, None for none.
        Raises the log's errors."""
        async with self._lock:
            await self._read(upto)
        places = self._places.get(name_or_id, [])
        index = bisect_right(places, upto)
        if index:
            return places[index - 1]
        return 0 if self._dropped else None

    def similar(self, name: str) -> list[str]:
        """Return names that the user may have meant."""
        names = {self._order[index][1] for index in range(max(0, len(self._order) - _SUGGESTED), len(self._order))}
        return difflib.get_close_matches(name, sorted(names), n=3)

    async def _read(self, upto: int) -> None:
        if self._after >= upto:
            return
        async with contextlib.aclosing(self._log.read(after=self._after, subjects=[self._pattern])) as batches:
            async for batch in batches:
                for record in batch:
                    event = decode(record)
                    if isinstance(event, AppSubmitted) and (name := name_of(event.spec)):
                        self._keep(record.seq, name, app_id(name, event.id))
                self._after = batch[-1].seq
        self._after = max(self._after, upto)

    def _keep(self, seq: int, name: str, id: str) -> None:
        self._order.append((seq, name, id))
        for key in (name, id):
            self._places.setdefault(key, []).append(seq)
        while len(self._order) > _MOST_SUBMITTED:
            self._dropped, *gone = self._order.popleft()
            for key in gone:
                self._places[key].pop(0)
                if not self._places[key]:
                    del self._places[key]


# --- lives ------------------------------------------------------------------------------------------------------------

T = TypeVar("T")

_MOST = 24
"""Lives that are kept."""
_OF_NAME = 2
_MOST_WAITING = 64
_OF_STATE = 6
"""Bytes of a state in memory for each byte of its encoding, about."""
_OF_RECORD = 60
"""Bytes that the observers of one life keep of a record that they have followed, about."""


class Subject(NamedTuple):
    """What a life is of."""

    name: str
    node: bool = False


class Life:
    """Observers of one app or node, and the state after the last record that they have followed."""

    def __init__(self, subject: Subject, state: State) -> None:
        self.state = state
        self.teller: AppTeller | NodeTeller = NodeTeller(subject.name) if subject.node else AppTeller(subject.name)
        self.witness = Witness(subject.name)
        self.outlook = Outlook()
        self.followers: list[Observer] = [self.teller, self.witness, *([] if subject.node else [self.outlook])]
        self._begun = state.seq
        self._state_bytes = len(msgspec.msgpack.encode(state)) * _OF_STATE

    @property
    def seq(self) -> int:
        return self.state.seq

    @property
    def bytes(self) -> int:
        """What it takes in memory, about."""
        return self._state_bytes + (self.seq - self._begun) * _OF_RECORD

    @property
    def story(self) -> Story | None:
        return story_of(self.teller, self.state)

    def follow(self, records: list[Record]) -> None:
        for record in records:
            event, folded = evolve(self.state, record)
            for follower in self.followers:
                follower.see(self.state, record, event, folded)


class _Known:
    """The lives of one name, by the sequence that they have reached; for one question at a time."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.lives: list[Life] = []

    def before(self, seq: int) -> Life | None:
        """Return the one with least to follow up to a record."""
        return max((live for live in self.lives if live.seq <= seq), key=lambda life: life.seq, default=None)

    def keep(self, life: Life) -> None:
        """In the place of what is not the latest one."""
        self.lives.sort(key=lambda each: each.seq)
        self.lives = [life, *self.lives[len(self.lives) - _OF_NAME + 1 :]]


class Lives:
    """The apps and nodes that were asked for last."""

    def __init__(self, follower: Follower, recent: RecentLog, moments: Moments, heavy: Heavy, limits: Limits) -> None:
        self._follower = follower
        self._recent = recent
        self._moments = moments
        self._heavy = heavy
        self._limits = limits
        self._submitted = Submitted(recent, follower.cluster)
        self._known: OrderedDict[Subject, _Known] = OrderedDict()
        self._questions: set[asyncio.Task[object]] = set()

    def forget(self) -> None:
        """Drop the cache: the log was replaced."""
        self._known.clear()
        self._submitted.forget()

    async def ask(self, subject: Subject, seq: int, question: Callable[[Life], T]) -> T:
        """Return what `question` finds in a life that reaches exactly up to a record which is folded; it runs in a thread, and
        returns nothing that following changes later.  Raises Missing, Unavailable, and the log's errors."""
        if len(self._questions) >= _MOST_WAITING:
            raise Unavailable("too many stories are being read; try again", code="api.busy")
        task = asyncio.create_task(self._answer(subject, seq, question))
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _answer(self, subject: Subject, seq: int, question: Callable[[Life], T]) -> T:
        await self._follower.reach(seq, self._limits.behind_s)
        known = self._known.setdefault(subject, _Known())
        self._known.move_to_end(subject)
        try:
            async with known.lock, self._heavy.turn():
                life = known.before(seq)
                if life is None:
                    life = await self._begin(subject, seq)
                    known.keep(life)
                try:
                    await self._follow(life, seq)
                except Unavailable:
                    raise
                except BaseException:
                    known.lives.remove(life)  # Its observers may not have seen what its state has.
                    raise
                self._keep_within_bounds()
                return await self._heavy.run(partial(question, life))
        except (Missing, GapError, LogError):
            # There is no such thing, or the followed log may have been replaced.
            if self._known.get(subject) is known:
                del self._known[subject]
            raise

    async def _follow(self, life: Life, seq: int) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._limits.answer_s
        if life.seq >= seq:
            return
        async with contextlib.aclosing(self._recent.read(after=life.seq)) as batches:
            async for batch in batches:
                await self._heavy.run(partial(life.follow, [record for record in batch if record.seq <= seq]))
                if life.seq >= seq:
                    return
                if loop.time() > until:
                    text = f"its log is read up to record {life.seq:,} of {seq:,}; ask again to continue from there"
                    raise Unavailable(text, code="api.behind")

    def _keep_within_bounds(self) -> None:
        """Forget the lives that were asked for longest ago, but never the one that is asked for now."""
        while len(self._known) > 1 and (
            sum(len(known.lives) for known in self._known.values()) > _MOST
            or sum(life.bytes for known in self._known.values() for life in known.lives) > self._limits.past
        ):
            self._known.popitem(last=False)

    # --- where a life starts --------------------------------------------------------------------------------------------

    async def _begin(self, subject: Subject, upto: int) -> Life:
        log = self._follower.log
        start = await log.start()
        if subject.node:
            state = await self._at(max(start, await self._joined(subject.name, upto) - 1))
        else:
            seq = await self._submitted_at(subject.name, upto, start)
            state = await base_of(log, seq, start, self._at) if seq else await self._at(start)
        life = await self._heavy.run(partial(Life, subject, state))
        await begin(log, state, life.followers)
        return life

    async def _at(self, seq: int) -> State:
        return await self._moments.within_turn(seq)

    async def _submitted_at(self, name: str, upto: int, start: int) -> int:
        """Return the sequence of an app's submission; 0 if only the whole log can say.  Raises Missing."""
        submitted = await self._submitted.latest(name, upto)
        if submitted is None:
            state = await self._at(start)
            if (app := state.find_app(name)) is not None:
                return app.seq
            near = self._submitted.similar(name)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise Missing(f"there was no app {name!r} up to record {upto}{hint}", code="app.not_found")
        if not submitted:
            return 0
        # If an app of this name is there already, the submission is refused, and the story is that app's.
        before = (await self._at(max(start, submitted - 1))).find_app(name)
        return before.seq if before is not None else submitted

    async def _joined(self, name: str, upto: int) -> int:
        """Return the sequence with which a node joined first.  Raises Missing."""
        subject = subjects.fact(self._follower.cluster, NodeJoined.__name__, name)
        async with contextlib.aclosing(self._recent.read(subjects=[subject])) as batches:
            async for batch in batches:
                if batch[0].seq <= upto:
                    return batch[0].seq
                break
        if await self._follower.look(lambda state: name in state.nodes):
            return 1  # Another one spoke for it, as in logs of earlier versions.
        raise Missing(f"there was no node {name!r} up to record {upto}; `/v1/nodes` lists them", code="node.not_found")
