"""The API's fold of one log, with what its handlers ask about it: the log's end, and the last decision."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from dorm.api.errors import Missing, Unavailable
from dorm.live_fold import LiveFold, NotFolded, Thread, newest_state
from events.kinds import Round
from events.log.records import LogError
from replay.page.view import decision_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.core.fold.folded import Folded
    from dorm.core.state import State
    from events.kinds import Event
    from events.log.interface import EventLog
    from events.log.records import Record
    from events.positions import Logged

T = TypeVar("T")

_END_S = 1.0
"""Seconds between two looks at the log's end, by which the lag is known."""


class Follower(LiveFold):
    """One process's fold of one log."""

    log: EventLog

    def __init__(self, log: EventLog, cluster: str) -> None:
        super().__init__(log, begin=self._newest, thread=Thread("dorm-api-state"))
        self.cluster = cluster
        self.decided: Logged | None = None
        """The last decision of the state, for its thread."""
        self._decided_at_begin: Record | None = None
        self.on_begin.append(self._take_last_decision)

    async def run(self) -> None:
        """Follow until cancelled, or until the connection is closed permanently (LogClosed)."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._look_ahead(), name="log's end")
                await super().run()
        finally:
            if self._thread is not None:
                self._thread.close()

    async def _newest(self) -> State:
        state = await newest_state(self.log)
        self._decided_at_begin = await self.log.record_at(state.figures.seq) if state.figures.seq else None
        return state

    def _take_last_decision(self, _state: State) -> None:
        self.decided = decision_in(self._decided_at_begin) if self._decided_at_begin is not None else None
        self.observers.append(self._note_decision)

    def _note_decision(self, _state: State, record: Record, event: Event, folded: Folded) -> None:
        if isinstance(event, Round) and folded != "void":
            self.decided = decision_in(record) or self.decided

    async def _look_ahead(self) -> None:
        """Keep the log's end known, by which the lag is measured."""
        while True:
            await asyncio.sleep(_END_S)
            try:
                self.end = max(self.seq, await self.log.end())
            except LogError as error:
                if self.caught_up.is_set():
                    self.trouble = str(error)
            else:
                if self.caught_up.is_set():
                    self.trouble = ""

    # --- asking ---------------------------------------------------------------------------------------------------------

    async def look(self, question: Callable[[State], T], kind: str = "") -> T:
        """Return what `question` finds, as `LiveFold.look` does.  Raises Unavailable until the log was read once."""
        try:
            return await super().look(question, kind)
        except NotFolded as error:
            raise Unavailable(str(error), code="api.starting") from None

    async def reach(self, seq: int, timeout: float | None = None) -> None:
        """Wait until a record is folded. Raises Missing if the log does not have it, Unavailable if it takes too
        long."""
        if self.seq < seq and seq > self.end:
            self.end = max(self.end, await self.log.end())
            if seq > self.end:
                raise Missing(f"the log ends at {self.end}, before {seq}", code="moment.after_end")
        try:
            await super().reach(seq, timeout)
        except TimeoutError:
            raise Unavailable(
                f"this process has read the log up to {self.seq}, and not yet up to {seq}; try again", code="api.behind"
            ) from None

    async def latest(self, timeout: float) -> None:
        """Wait until everything is folded that is on the log now.  Raises Unavailable, and the log's errors."""
        await self.reach(await self.log.end(), timeout)
