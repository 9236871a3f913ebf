"""What a master does when the log refuses its rounds: it says so, waits, and asks again what follows; it never ends by it.

A refusal is about the message or the server's settings, so the same again at once would be refused as well.  A master that
holds a lease gives it back after a few, for another one may have a server that takes them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from events.kinds import Round
    from events.log.records import LogRefused

MOST_IN_A_ROW = 5
LONGEST_PAUSE_S = 10.0
_PAUSE_S = 0.5
"""Times the refusals in a row."""
_log = structlog.get_logger(__name__)


class Refusals:
    """Of one master's rounds, since one was stored."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def over(self) -> None:
        """A round is stored."""
        self._in_a_row = 0

    async def bear(self, event: Round, error: LogRefused) -> bool:
        """Say what was refused and wait a while.  True after each `MOST_IN_A_ROW` of them, without a wait."""
        self._in_a_row += 1
        kinds = [type(fact).__name__ for fact in event.events]
        _log.error(
            "the log refuses a round", reason=str(error), facts=kinds[:10], count=len(kinds), tries=self._in_a_row
        )
        if self._in_a_row % MOST_IN_A_ROW == 0:
            return True
        await asyncio.sleep(min(_PAUSE_S * self._in_a_row, LONGEST_PAUSE_S))
        return False
