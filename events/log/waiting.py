"""Retry while the log does not answer, without end, and report the wait.

Masters and agents may start before their NATS servers, or while those elect their leaders, and continue once the log is
there.  Commands give up instead, with the reason.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from events.log.records import LogClosed, LogUnavailable
from events.logger import Logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")
_SHORTEST_S, _LONGEST_S = 0.2, 2.0
"""Bounds of the pause between two tries, in seconds."""
_SAY_AFTER_S = 3.0
_SAY_AGAIN_S = 60.0
_log = Logger(__name__)


async def until_answered(ask: Callable[[], Awaitable[T]], doing: str) -> T:
    """Call `ask` until it no longer raises LogUnavailable, and return its result.  `doing` names for people what waits; it is
    logged after a few seconds, now and then during the wait, and at its end.  Raises LogClosed, and whatever else `ask`
    raises."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    pause, say_at, said = _SHORTEST_S, began + _SAY_AFTER_S, False
    while True:
        try:
            found = await ask()
        except LogClosed:
            raise
        except LogUnavailable as error:
            now = loop.time()
            if now >= say_at:
                _log.warning("waiting for the log", doing=doing, waited_s=round(now - began), reason=str(error))
                say_at, said = now + min(_SAY_AGAIN_S, max(_SAY_AFTER_S, now - began)), True
        else:
            if said:
                _log.warning("the log answers", doing=doing, waited_s=round(loop.time() - began))
            return found
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_S)
