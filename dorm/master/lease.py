"""One master's side of leader election: waits for the lease, keeps it, gives it back.

    follow     look at the lease from time to time; take it over once the same revision was seen for as long as it is good
    lead       renew it four times as often as necessary
    lapse      it was not renewed for as long as it is good: by this process's own monotonic clock, from the moment at which
               the last successful renewal was sent.  Until a renewal succeeds, this master decides nothing
    lose       another master has it

So a process that was stopped, cut off or slow knows at its next step that its lease has lapsed, before it learns of a
successor. A renewal succeeds only if no other master has taken the lease since the last one, however long ago that was.  Then
nobody has led meanwhile, and the master goes on in its epoch.  A master without competitors is therefore never deposed for
want of its own processor or of an answer.  No master compares its clock with another's.

The loop of a leading master also folds, decides and answers, so under a flood its renewals come late, and another master could
take over from one that works.  A *stand-in* (`dorm.master.lease`), a thread with a loop and a connection of its own, renews
the lease whenever the loop is late.  It follows the loop: after `LONGEST_HANG_S` without a step of it, the stand-in stops, so
a master that hangs loses its lease to another one.  A simulation has no threads and runs without it.

    LeaseLost    this master must not decide any more

A thread that renews the masters' lease when the master's own loop is late.

A leading master's loop folds, decides, and often shares its process with agents and other readers of the log.  A flood of
records, or a slow decision, can keep it from renewing the lease in time, although the master works.  The thread's loop has
nothing else to do, and its connection carries nothing else, so neither a long fold nor a queue of records delays it: the
interpreter switches threads every few milliseconds.

`dorm.master.lease` says when it renews, and when a loop that hangs has to lose its lease."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

import msgspec
import structlog

from events.errors import DormError
from events.log.records import LogError, LogUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from events.log.leadership import Held, Leadership

    Apart = Callable[[], AbstractAsyncContextManager[Leadership]]
    """Returns the lease over a connection of its own, which is made on the loop that enters it."""


# --- lease ------------------------------------------------------------------------------------------------------------

_log = structlog.get_logger(__name__)
_LOOKS = 8
"""Looks per lease duration, by a follower; bounds how late it notices."""
_LONGEST_LOOK_S = 1.0
_RENEWALS = 4
_RETRIES = 16
"""Retries of a failed renewal per lease duration."""
_GIVE_BACK_S = 1.0
_LATE = 3 / 8
"""The part of the lease duration after which a renewal counts as late: the loop renews after a quarter of it."""
LONGEST_HANG_S = 30.0
"""Seconds for which the lease is renewed for a loop that takes no step, or `_HANGS` lease durations if that is longer.  A slow
decision on a busy machine takes seconds."""
_HANGS = 3


class LeaseLost(DormError):
    """Another master has the lease, or may have taken it."""

    code = "lease.lost"


class Lease:
    """`name` is this master's name, `ttl_s` how long its lease is good without a renewal (seconds)."""

    def __init__(
        self, leadership: Leadership, name: str, ttl_s: float, seen: Callable[[], tuple[int, str]] = lambda: (0, "")
    ) -> None:
        """`seen` returns the sequence up to which this master has read the log, and the hash chain there."""
        self.settled = asyncio.Event()
        """Event that is set once it is known which master leads: this one, or another whose lease was seen to be renewed."""
        self._leadership = leadership
        self._name = name
        self._ttl_s = ttl_s
        self._held: Held | None = None
        """The lease while this master has it, otherwise None."""
        self._good_until = 0.0
        self._seen = seen
        self._publishes_sightings = False
        self.troubled = False
        """Whether the loop's last renewal failed."""
        self.lapses = 0
        """Number of renewals after the lease had lapsed."""
        self._stepped_at = 0.0
        """Time at which the loop last took a step while it kept the lease."""

    @property
    def held(self) -> bool:
        """Whether this master still holds the lease: no other master can have taken it."""
        return self._held is not None and _now() < self._good_until

    @property
    def left_s(self) -> float:
        """Seconds for which it is held without a further renewal; 0 while it is not."""
        return max(0.0, self._good_until - _now()) if self._held is not None else 0.0

    async def sighting(self) -> tuple[int, str]:
        """Return how far the last leader had read the log, and the chain there; sequence 0 if that is unknown.  Raises
        LogUnavailable."""
        try:
            async with asyncio.timeout(max(_GIVE_BACK_S, self._timeout_s)):
                held = self._held or await self._leadership.look()
        except TimeoutError:
            raise LogUnavailable("looking up the lease of the masters: no answer in time") from None
        return (held.seq, held.chain) if held is not None else (0, "")

    def publish_sightings(self) -> None:
        """From now on, publish in the lease how far this master has read the log, which it has compared with the last
        leader's."""
        self._publishes_sightings = True

    def _with_sighting(self, held: Held) -> Held:
        if not self._publishes_sightings:
            return held
        seq, chain = self._seen()
        return msgspec.structs.replace(held, seq=seq, chain=chain)

    # --- following ------------------------------------------------------------------------------------------------------

    async def win(self) -> None:
        """Wait until this master has the lease."""
        self._publishes_sightings = False
        seen: Held | None = None
        since: float | None = None
        """Time at which `seen` was first seen; None if the last look failed."""
        while self._held is None:
            sent_at = _now()
            try:
                async with asyncio.timeout(self._timeout_s):
                    held = await self._leadership.look()
                    if since is None or held != seen:
                        self._log_holder(seen, held)
                        seen, since = held, _now()
                    if self._may_take(held, since):
                        sent_at = _now()
                        self._held = await self._leadership.take(self._name, self._ttl_s, held)
            except (LogError, TimeoutError) as error:
                _log.debug("the lease can't be looked at", reason=str(error) or "no answer in time")
                since = None
            if self._held is None:
                await asyncio.sleep(self._pause_s(seen, since))
        self._good_until, self.troubled, self._stepped_at = sent_at + self._ttl_s, False, _now()

    def _may_take(self, held: Held | None, since: float) -> bool:
        """Return whether the lease is free, held by this master (from a write with an unknown outcome), or expired."""
        return held is None or held.holder in ("", self._name) or _now() - since >= held.ttl_s

    def _pause_s(self, seen: Held | None, since: float | None) -> float:
        pause = min(self._ttl_s / _LOOKS, _LONGEST_LOOK_S)
        if seen is None or since is None:
            return pause
        return max(0.01, min(pause, since + seen.ttl_s - _now()))

    def _log_holder(self, before: Held | None, held: Held | None) -> None:
        if held is None or held.holder in ("", self._name):
            return
        if before is None or before.holder != held.holder:
            _log.info("following", leader=held.holder)
        else:
            self.settled.set()

    # --- leading --------------------------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Renew the lease until it is lost.  Raises LeaseLost."""
        pause = self._ttl_s / _RENEWALS
        while True:
            self._stepped_at = _now()
            await asyncio.sleep(pause)
            pause = self._ttl_s / (_RENEWALS if await self._renew() else _RETRIES)

    async def _renew(self) -> bool:
        """Return whether the renewal succeeded.  Raises LeaseLost."""
        sent_at, lapsed = _now(), not self.held
        if self._held is None:
            raise LeaseLost("another master has taken the lease", code="lease.taken")
        timeout_s = self._timeout_s if lapsed else min(self._timeout_s, self.left_s)
        try:
            async with asyncio.timeout(timeout_s):
                renewed = await self._leadership.renew(self._with_sighting(self._held))
        except (LogError, TimeoutError) as error:
            (_log.debug if self.troubled else _log.warning)(
                "the lease is not renewed", reason=str(error) or "no answer in time", good_for_s=round(self.left_s, 1)
            )
            self.troubled = True
            return False
        if renewed is None:
            self.drop()
            raise LeaseLost("another master has taken the lease", code="lease.taken")
        if lapsed:
            self.lapses += 1
            _log.warning(
                "the lease had lapsed, and no other master has taken it", waited_s=round(sent_at - self._good_until, 1)
            )
        self._held, self.troubled = renewed, False
        self._good_until = max(self._good_until, sent_at + self._ttl_s)
        return True

    async def stand_in(self, leadership: Leadership) -> None:
        """Renew the lease over `leadership` whenever the loop that keeps it is late, without end.

        Runs on the loop of another thread.  It therefore writes nothing but until when the lease is good, and that it had
        lapsed, which is true of a lease that was renewed, whatever the other thread does meanwhile.  That the lease was
        taken, the next renewal of the other one finds out."""
        while True:
            await asyncio.sleep(self._pause_of_stand_in_s())
            held, sent_at = self._held, _now()
            if held is None or not self._late(sent_at):
                continue
            try:
                async with asyncio.timeout(self._timeout_s):
                    renewed = await leadership.renew(held)
            except (LogError, TimeoutError) as error:
                _log.debug("the lease is not renewed by its stand-in", reason=str(error) or "no answer in time")
                continue
            if renewed is not None:
                self.lapses += sent_at >= self._good_until
                self._good_until = max(self._good_until, sent_at + self._ttl_s)

    def _pause_of_stand_in_s(self) -> float:
        if self._held is None:
            return self._ttl_s / _RENEWALS
        return max(self._ttl_s / _RETRIES, self._late_at - _now())

    @property
    def _late_at(self) -> float:
        return self._good_until - (1 - _LATE) * self._ttl_s

    def _late(self, now: float) -> bool:
        """Return whether the loop's renewal is late although the loop may still take a step."""
        return now >= self._late_at and now - self._stepped_at < max(LONGEST_HANG_S, _HANGS * self._ttl_s)

    @property
    def _timeout_s(self) -> float:
        """Two tries fit into the lease duration."""
        return self._ttl_s / 2

    def drop(self) -> None:
        """Treat the lease as lost, regardless of what is stored."""
        self._held = None

    async def give_back(self) -> None:
        """Release the lease so that the next master leads immediately. If that fails, the next master waits until it
        has expired."""
        held, self._held = self._held, None
        if held is None:
            return
        with contextlib.suppress(LogError, TimeoutError):
            async with asyncio.timeout(_GIVE_BACK_S):
                await self._leadership.give_back(self._with_sighting(held))


def _now() -> float:
    return asyncio.get_running_loop().time()


# --- stand in ---------------------------------------------------------------------------------------------------------

_AGAIN_S = 5.0
"""Seconds until the next try if no connection can be made."""
_END_S = 3.0
"""Seconds for the thread to close its connection."""


@contextlib.asynccontextmanager
async def standing_in(lease: Lease, apart: Apart) -> AsyncIterator[None]:
    """Renew `lease` in a thread while the body runs, whenever the loop of the body is late."""
    ended = asyncio.Event()
    here = asyncio.get_running_loop()
    there: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []
    cancelled = threading.Event()

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        there.append((asyncio.get_running_loop(), task))
        if not cancelled.is_set():
            await _renew(lease, apart)

    def run() -> None:
        try:
            with contextlib.suppress(asyncio.CancelledError):
                asyncio.run(work())
        finally:
            with contextlib.suppress(RuntimeError):  # The other loop may be closed, if it did not wait.
                here.call_soon_threadsafe(ended.set)

    # A daemon: a process that ends does not wait for a server that does not answer.
    thread = threading.Thread(target=run, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        cancelled.set()
        for loop, task in there:
            with contextlib.suppress(RuntimeError):  # It has just ended.
                loop.call_soon_threadsafe(task.cancel)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await ended.wait()
                thread.join()  # It has nothing left to do.


async def _renew(lease: Lease, apart: Apart) -> None:
    """The master's own loop renews the lease as well, so a stand-in that fails ends nothing."""
    while True:
        try:
            async with apart() as leadership:
                await lease.stand_in(leadership)
        except DormError as error:
            _log.warning("the lease has no stand-in", reason=str(error), in_s=_AGAIN_S)
        await asyncio.sleep(_AGAIN_S)
