"""What a cluster on this machine waits for while it starts, and for how long at most.

On a busy machine, each step takes seconds.  The user sees which one it is, and what the limit is; after the limit, which part
is missing and where its log is.

    StartTooSlow    the limit has passed; the message says which part is missing
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from events.errors import DormError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")
LIMIT_S = 120.0
_QUIET_S = 5.0
"""Seconds before the first message; the pauses between later ones double."""
MESSAGES = "the messages above (`-v` logs more)"
"""Where master and agents of this process log."""


class StartTooSlow(DormError):
    """A part of the cluster did not start in time."""

    code = "start.too_slow"


class Starting:
    """Knows which part is waited for.  `limit_s` are the seconds for all of the start."""

    def __init__(self, limit_s: float = LIMIT_S, tell: Callable[[str], None] = lambda _: None) -> None:
        """`tell` is called with each message."""
        self._limit_s = limit_s
        self._tell = tell
        self._part, self._log = "the first part", MESSAGES
        self._began: float | None = None

    def awaits(self, part: str, log: object = MESSAGES) -> None:
        """From now on, `part` is waited for; `log` is where it logs."""
        self._part, self._log = part, str(log)

    async def within(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns; it has what is left of the limit.  Raises StartTooSlow, after `work` has ended, and what
        `work` raises."""
        loop = asyncio.get_running_loop()
        self._began = began = loop.time() if self._began is None else self._began
        working = asyncio.ensure_future(work)
        pause = _QUIET_S
        try:
            while True:
                left = began + self._limit_s - loop.time()
                await asyncio.wait([working], timeout=max(0.0, min(pause, left)))
                if working.done():
                    return working.result()
                if left <= pause:
                    part, log = self._part, self._log
                    raise StartTooSlow(
                        f"the cluster did not start within {self._limit_s:g} s: {part} is missing; see {log}, and allow more "
                        "time with --start-limit"
                    )
                waited = f"{loop.time() - began:.0f} s so far, {self._limit_s:g} s at most"
                self._tell(f"waiting for {self._part} ({waited}); its log: {self._log}")
                pause *= 2
        finally:
            working.cancel()
            await asyncio.wait([working])
