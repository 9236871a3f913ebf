"""The progress beside the log as a plain user has it: that of the tenant's own apps."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from events.log.progress import EVERY, Progress
from events.log.records import LogRefused, LogUnavailable, Record
from events.requests import ViewQuestion

Asking = Callable[[ViewQuestion, Any], AsyncGenerator[Any, None]]
AskingOne = Callable[[ViewQuestion, Any], Awaitable[Any]]
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0


class ViewedProgress(Progress):
    """The progress beside the log, of the own apps."""

    def __init__(self, values: Asking, value: AskingOne, closed: Callable[[], bool]) -> None:
        """`values` and `value` ask the server of the view, `closed` says whether nothing will be answered any more."""
        self._values = values
        self._value = value
        self._closed = closed

    async def read(
        self, *, after: int = 0, app: str = EVERY, follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        pause = _PAUSE_S
        while True:
            question = ViewQuestion(what="progress", after=after, app=app, follow=follow)
            try:
                async with contextlib.aclosing(self._values(question, list[Record])) as batches:
                    async for batch in batches:
                        after, pause = batch[-1].seq, _PAUSE_S
                        yield batch
                if not follow:
                    return
            except LogUnavailable:
                if not follow or self._closed():
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def newest(self, app: str = EVERY) -> list[Record]:
        found: list[Record] = await self._value(ViewQuestion(what="newest progress", app=app), list[Record])
        return found

    async def end(self) -> int:
        found: int = await self._value(ViewQuestion(what="end of progress"), int)
        return found

    async def at_time(self, time: int) -> int:
        found: int = await self._value(ViewQuestion(what="time of progress", at=time), int)
        return found

    async def put(self, subject: str, body: bytes, *, msg_id: str = "", timeout: float = 5.0) -> None:
        raise LogRefused("only nodes report progress", code="log.view.read_only")
