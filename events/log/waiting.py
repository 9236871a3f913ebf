"""Waiting for a log that does not answer: for as long as it takes, and saying so.

Masters and agents start before their NATS servers, or while those elect their leaders, and go on by themselves when the log is
there.  A command that answers somebody gives up instead, with the reason.
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
"""Between two tries."""
_SAY_AFTER_S = 3.0
_SAY_AGAIN_S = 60.0
_log = Logger(__name__)


async def until_answered(ask: Callable[[], Awaitable[T]], doing: str) -> T:
    """What `ask` gives, which is called again while it raises LogUnavailable.  `doing` says for people what waits: it is
    logged after a few seconds, now and then while it lasts, and when it is over.  Raises LogClosed, and what else `ask`
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
