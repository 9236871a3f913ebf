"""Backoff for rounds that the log refuses: the master reports the refusal, waits, and decides again; it never ends by it.

A refusal is about the message or the server's settings, so an immediate retry would be refused too.  A master that holds a
lease gives it back after a few refusals: another master may have a server that accepts its rounds.
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
"""Times the number of refusals in a row."""
_log = structlog.get_logger(__name__)


class Refusals:
    """Refusals of one master's rounds since one was stored."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def over(self) -> None:
        """Note that a round was stored."""
        self._in_a_row = 0

    async def bear(self, event: Round, error: LogRefused) -> bool:
        """Log the refusal and wait.  Return True after each `MOST_IN_A_ROW` of them, without a wait."""
        self._in_a_row += 1
        kinds = [type(fact).__name__ for fact in event.events]
        _log.error(
            "the log refuses a round", reason=str(error), facts=kinds[:10], count=len(kinds), tries=self._in_a_row
        )
        if self._in_a_row % MOST_IN_A_ROW == 0:
            return True
        await asyncio.sleep(min(_PAUSE_S * self._in_a_row, LONGEST_PAUSE_S))
        return False
