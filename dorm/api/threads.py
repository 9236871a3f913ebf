"""Threads that compute answers, and when the loop computes them itself.

A thread cannot be cancelled, so work continues when its caller has gone. The number of threads, and of callers that wait for
one, bounds the work."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import TYPE_CHECKING, TypeVar

import msgspec

from dorm.api.errors import Unavailable
from dorm.live_fold import SMALL
from events.limits import Shares
from events.spec import CheckedSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

T = TypeVar("T")


async def apart_if_large(size: int, work: Callable[[], T]) -> T:
    """Do work on `size` bytes: in a thread if they are many."""
    return work() if size < SMALL else await asyncio.to_thread(work)


# msgspec reads a type's annotations on first use, and two threads that do so at once crash the process.  Events and states
# have decoders where they are defined; specs are converted.
msgspec.json.Decoder(CheckedSpec)


class Turns:
    """A number of turns at once. Waiting parties take turns, and each party's requests are served in order, so a party that
    asks without end delays only itself."""

    def __init__(self, at_once: int, waiting: int, *, of_one: int | None = None) -> None:
        """`waiting`: how many of one party's may wait; `of_one`: how many turns one party has at once, None for all."""
        self._free = at_once
        self._of_one = at_once if of_one is None else of_one
        self._shares = Shares(at_once + 2 * waiting)
        self._having: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @contextlib.asynccontextmanager
    async def turn(self, party: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it for the length of the block.  Raises Unavailable if too many wait."""
        if not self._shares.has_room_for(party):
            raise Unavailable("too much of this is under way already; try again", code="api.busy")
        with self._shares.held(party):
            await self._begin(party)
            try:
                yield
            finally:
                self._end(party)

    async def _begin(self, party: str) -> None:
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(party, deque()).append(begun)
        self._hand_out()
        try:
            await begun
        except asyncio.CancelledError:
            if begun.done() and not begun.cancelled():
                self._end(party)
            raise

    def _end(self, party: str) -> None:
        self._free += 1
        self._having[party] -= 1
        if not self._having[party]:
            del self._having[party]
        self._hand_out()

    def _hand_out(self) -> None:
        """Give free turns to those that wait: the party that had one last comes last."""
        for party in list(self._waiting):
            queue = self._waiting[party]
            while queue and queue[0].done():  # It gave up.
                queue.popleft()
            if queue and self._free and self._having[party] < self._of_one:
                queue.popleft().set_result(None)
                self._free -= 1
                self._having[party] += 1
                self._waiting[party] = self._waiting.pop(party)
            if not queue:
                del self._waiting[party]


class Heavy:
    """A bound on expensive work, which all parties share."""

    def __init__(self, at_once: int, waiting: int) -> None:
        self._turns = Turns(at_once, waiting)
        self._executor = ThreadPoolExecutor(at_once, thread_name_prefix="dorm-api-heavy")
        self._party = ""

    def of(self, party: str) -> Heavy:
        """Return the same for the work of one party."""
        made = copy(self)
        made._party = party
        return made

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and have it for the length of the block. Raises Unavailable if too many wait."""
        async with self._turns.turn(self._party):
            yield

    async def run(self, work: Callable[[], T]) -> T:
        """Run in a thread, within a turn.  A caller that is cancelled leaves its thread to the work until that is done."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
