"""One master's part in who leads: waiting for the lease, keeping it, giving it back.

    follow     look at the lease now and then; who has seen the same revision for as long as it is good takes it over
    lead       write it anew four times as often as it would need
    lose       somebody else has it, or it was not renewed for as long as it is good: by this process's own monotonic clock,
               from the moment at which the last renewal that succeeded was sent

So a process that was stopped, cut off or slow knows by itself, at its next step, that it does not lead any more, before it has
heard of a successor; and none of them compares its clock with anybody's.

    LeaseLost    this master must not decide any more
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec
import structlog

from events.log.records import LogError, LogUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from events.log.leadership import Held, Leadership

_log = structlog.get_logger(__name__)
_LOOKS = 8
"""How often a follower looks in the time that the lease is good for, which bounds how late it notices."""
_LONGEST_LOOK_S = 1.0
_RENEWALS = 4
_RETRIES = 16
"""How often a renewal that failed is tried in the time that the lease is good for."""
_GIVE_BACK_S = 1.0


class LeaseLost(Exception):
    """Another master has the lease, or may have taken it by now."""


class Lease:
    """`name` is this master's, `ttl_s` for how long its lease is good without a renewal (seconds)."""

    def __init__(
        self, leadership: Leadership, name: str, ttl_s: float, seen: Callable[[], tuple[int, str]] = lambda: (0, "")
    ) -> None:
        """`seen` gives the sequence up to which this master has read the log, and the hash chain there."""
        self.settled = asyncio.Event()
        """Set once it is known who leads: this master, or another one that was seen to be there."""
        self._leadership = leadership
        self._name = name
        self._ttl_s = ttl_s
        self._held: Held | None = None
        """While it is ours."""
        self._good_until = 0.0
        self._seen = seen
        self._vouched = False
        self.troubled = False
        """Whether the last renewal failed."""

    @property
    def held(self) -> bool:
        """Whether nobody else can have taken it yet."""
        return self._held is not None and _now() < self._good_until

    def check(self) -> None:
        """Raises LeaseLost."""
        if not self.held:
            raise LeaseLost(f"the lease was not renewed for {self._ttl_s:g} s")

    async def sighting(self) -> tuple[int, str]:
        """How far the last leader had read the log, and the chain there; sequence 0 where that is not known.  Raises
        LogUnavailable."""
        try:
            async with asyncio.timeout(max(_GIVE_BACK_S, self._timeout_s)):
                held = self._held or await self._leadership.look()
        except TimeoutError:
            raise LogUnavailable("looking up the lease of the masters: no answer in time") from None
        return (held.seq, held.chain) if held is not None else (0, "")

    def vouch(self) -> None:
        """From now on the lease says how far this master has read the log, which it has compared with what the last said."""
        self._vouched = True

    def _with_sighting(self, held: Held) -> Held:
        if not self._vouched:
            return held
        seq, chain = self._seen()
        return msgspec.structs.replace(held, seq=seq, chain=chain)

    # --- following ------------------------------------------------------------------------------------------------------

    async def win(self) -> None:
        """Wait until it is ours."""
        self._vouched = False
        seen: Held | None = None
        since: float | None = None
        """When `seen` was first seen, None where it was not seen since the last look that failed."""
        while self._held is None:
            sent_at = _now()
            try:
                async with asyncio.timeout(self._timeout_s):
                    found = await self._leadership.look()
                    if since is None or found != seen:
                        self._tell(seen, found)
                        seen, since = found, _now()
                    if self._may_take(found, since):
                        sent_at = _now()
                        self._held = await self._leadership.take(self._name, self._ttl_s, found)
            except (LogError, TimeoutError) as error:
                _log.debug("the lease can't be looked at", reason=str(error) or "no answer in time")
                since = None
            if self._held is None:
                await asyncio.sleep(self._pause_s(seen, since))
        self._good_until, self.troubled = sent_at + self._ttl_s, False

    def _may_take(self, found: Held | None, since: float) -> bool:
        """Nobody's, our own (a write of which we never heard), or silent for as long as it was good."""
        return found is None or found.holder in ("", self._name) or _now() - since >= found.ttl_s

    def _pause_s(self, seen: Held | None, since: float | None) -> float:
        pause = min(self._ttl_s / _LOOKS, _LONGEST_LOOK_S)
        if seen is None or since is None:
            return pause
        return max(0.01, min(pause, since + seen.ttl_s - _now()))

    def _tell(self, before: Held | None, found: Held | None) -> None:
        if found is None or found.holder in ("", self._name):
            return
        if before is None or before.holder != found.holder:
            _log.info("following", leader=found.holder)
        else:
            self.settled.set()

    # --- leading --------------------------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Renew it for ever.  Raises LeaseLost."""
        try:
            pause = self._ttl_s / _RENEWALS
            while True:
                await asyncio.sleep(pause)
                pause = self._ttl_s / (_RENEWALS if await self._renew() else _RETRIES)
        finally:
            if not self.held:
                self._held = None

    async def _renew(self) -> bool:
        """Whether that was done.  Raises LeaseLost."""
        sent_at = _now()
        left_s = self._good_until - sent_at
        if self._held is None or left_s <= 0.0:
            raise LeaseLost(f"the lease was not renewed for {self._ttl_s:g} s")
        try:
            async with asyncio.timeout(min(self._timeout_s, left_s)):
                renewed = await self._leadership.renew(self._with_sighting(self._held))
        except (LogError, TimeoutError) as error:
            (_log.debug if self.troubled else _log.warning)(
                "the lease is not renewed", reason=str(error) or "no answer in time", good_for_s=round(left_s, 1)
            )
            self.troubled = True
            return False
        if renewed is None:
            self._good_until = 0.0
            raise LeaseLost("another master has taken the lease")
        self._held, self._good_until, self.troubled = renewed, sent_at + self._ttl_s, False
        return True

    @property
    def _timeout_s(self) -> float:
        """Two tries fit into the time that it is good for."""
        return self._ttl_s / 2

    def drop(self) -> None:
        """From now on it is not ours, whatever is stored."""
        self._held = None

    async def give_back(self) -> None:
        """So that the next master leads at once.  Where that can't be said, it waits until the lease has run out."""
        held, self._held = self._held, None
        if held is None:
            return
        with contextlib.suppress(LogError, TimeoutError):
            async with asyncio.timeout(_GIVE_BACK_S):
                await self._leadership.give_back(self._with_sighting(held))


def _now() -> float:
    return asyncio.get_running_loop().time()
