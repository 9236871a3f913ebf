"""Rotates the log next to a master, over a separate connection, while that master leads: when the policy says so or a user
requests it.

A failure of a requested or due rotation is on the log (`RotationFailed`): a client can wait for it, and everyone sees why
a log grows.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from dorm.core.authority import forbidden
from dorm.rotation.policy import HELD_S, Policy, RotationError, span_of
from dorm.rotation.rotator import Rotator
from events import subjects
from events.appending import append_event
from events.archive.place import open_store
from events.archive.whole import WholeLog
from events.codec import decode
from events.errors import DormError
from events.kinds import RotationFailed, RotationRequested
from events.log.records import LogClosed, LogError, LogRefused, LogUnavailable
from events.nats.places import WEBHOOK
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from dorm.core.state import State
    from dorm.master.master import Master
    from events.chain import SealKey
    from events.log.records import Record
    from events.nats.connection import Connection


# --- service ----------------------------------------------------------------------------------------------------------

CHECK_S = 60.0
"""Seconds between two checks whether a rotation is due."""
_PAUSE_S = 1.0
_SAY_AGAIN = 60
"""Number of attempts at a due rotation, failing for the same reason, after which the log says so again: about once an hour."""
_log = structlog.get_logger(__name__)
NO_ARCHIVES = (
    "the leading master has no place for archives; start it with --archives FOLDER or --archives s3://BUCKET/PREFIX"
)


class RotationService:
    """One master's.  `rotator` is None if it has no place for archives: then it only answers requests.  `room` returns the
    bytes that the stream takes, `needed` the first record that a webhook has yet to deliver; `state` is the master's, which
    says who may ask."""

    def __init__(
        self,
        log: WholeLog,
        cluster: str,
        rotator: Rotator | None,
        policy: Policy,
        *,
        name: str,
        clock: Callable[[], int],
        leads: Callable[[], bool],
        state: Callable[[], State],
        room: Callable[[], Awaitable[int]] | None = None,
        needed: Callable[[], Awaitable[int | None]] | None = None,
        check_s: float = CHECK_S,
    ) -> None:
        self._log = log
        self._cluster = cluster
        self._rotator = rotator
        self._policy = policy
        self._name = name
        self._clock = clock
        self._leads = leads
        self._state = state
        self._room = room
        self._needed = needed
        self._check_s = check_s
        self._requests: asyncio.Queue[tuple[Record, RotationRequested]] = asyncio.Queue(16)
        self._failed = ("", 0)
        """The last reason why a due rotation failed, and how often it did since the log says so."""

    async def run(self) -> None:
        """Serve until cancelled.  Raises LogClosed."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen())
            while True:
                try:
                    async with asyncio.timeout(self._check_s):
                        record, request = await self._requests.get()
                except TimeoutError:
                    if self._leads() and self._rotator is not None:
                        await self._rotate_if_due()
                    continue
                if self._leads():
                    await self._serve(record, request)

    async def _listen(self) -> None:
        """Read requests from now on. While no master leads, a request fails with a message to its sender."""
        wanted = [subjects.fact_pattern(self._cluster, RotationRequested.__name__)]
        after = -1
        while True:
            try:
                after = await self._log.end() if after < 0 else after
                async with contextlib.aclosing(self._log.read(after=after, subjects=wanted, follow=True)) as batches:
                    async for batch in batches:
                        after = batch[-1].seq
                        for record in batch:
                            self._take(record)
            except LogClosed:
                raise
            except LogError as error:
                after = (
                    -1 if isinstance(error, LogRefused) else after
                )  # Before the log's start: the request is obsolete.
                _log.debug("requests to rotate can't be read", reason=str(error))
                await asyncio.sleep(_PAUSE_S)

    def _take(self, record: Record) -> None:
        event = decode(record)
        if not isinstance(event, RotationRequested):
            return
        if forbidden(self._state(), event, subjects.who_of(record.subject)) is None and not self._requests.full():
            self._requests.put_nowait((record, event))

    async def _serve(self, record: Record, request: RotationRequested) -> None:
        policy = self._policy.asked(request.keep_records, request.keep_s)
        try:
            if self._rotator is None:
                raise RotationError(NO_ARCHIVES, code="rotation.no_archives")
            policy = await self._held(policy)
            if not await self._rotate(policy, cause=str(record.seq)):
                raise _nothing_due(policy)
        except (DormError, TimeoutError) as error:
            await self._report(error, cause=str(record.seq))

    async def _rotate_if_due(self) -> None:
        try:
            policy = await self._held(self._policy)
            if await self._is_due(policy):
                await self._rotate(policy)
            self._failed = ("", 0)
        except LogUnavailable as error:
            _log.debug("no rotation while the log is unavailable", reason=str(error))
        except (DormError, TimeoutError) as error:
            reason, often = self._failed
            self._failed = (str(error), (often + 1) % _SAY_AGAIN if reason == str(error) else 0)
            if not self._failed[1]:
                await self._report(error)

    async def _held(self, policy: Policy) -> Policy:
        """Return the policy extended by what webhooks have yet to deliver, unless that is too old.  Raises LogError."""
        first = await self._needed() if self._needed is not None else None
        last = await self._log.record_at(await self._log.end()) if first is not None else None
        if first is None or last is None:
            return policy
        too_old = await self._log.stream.at_time(last.time - round(HELD_S * SECOND))
        return msgspec.structs.replace(policy, held_after=max(first - 1, too_old))

    async def _is_due(self, policy: Policy) -> bool:
        after, target = await span_of(self._log.stream, policy)
        if target <= after:
            return False
        end, start = await self._log.end(), await self._log.stream.start()
        first, last = await self._log.record_at(start + 1), await self._log.record_at(end)
        if first is None or last is None:
            return False
        taken = await self._room() if self._room is not None else None
        return self._policy.due(taken, first.time, last.time)

    async def _rotate(self, policy: Policy, *, cause: str = "") -> bool:
        """Move everything that may move, archive by archive; return whether anything moved. Records sealed meanwhile
        wait for the next rotation."""
        assert self._rotator is not None
        moved = False
        while self._leads():
            cut = await self._rotator.step(policy, epoch=self._state().epoch, cause=cause)
            moved = moved or cut is not None
            if cut is None or not cut.left:
                break
        return moved

    async def _report(self, error: Exception, cause: str = "") -> None:
        code = error.code if isinstance(error, DormError) else "log.unavailable"
        reason = str(error) or "the log did not answer in time"
        _log.warning("the log was not rotated", reason=reason, code=code)
        event = RotationFailed(
            id=f"{self._name}.rotation.{secrets.token_hex(8)}",
            at=self._clock(),
            by=self._name,
            cause=cause,
            code=code,
            reason=reason,
        )
        subject = subjects.fact(self._cluster, RotationFailed.__name__, subjects.MASTER)
        with contextlib.suppress(LogError):
            await append_event(self._log, subject, event)


def _nothing_due(policy: Policy) -> RotationError:
    held = ""
    if policy.held_after is not None:
        held = f", and those after {policy.held_after:,}, which webhooks have yet to deliver (`dorm webhooks list`)"
    return RotationError(
        f"nothing is old enough to move: the stream keeps {policy.keep_records:,} records, those of the last "
        f"{policy.keep_s:g} seconds{held}; `dorm log rotate --keep 0s --keep-records 0` moves all that is sealed",
        code="rotation.nothing_due",
    )


@contextlib.asynccontextmanager
async def rotating(service: RotationService) -> AsyncIterator[None]:
    """Run a service while the body runs."""
    task = asyncio.create_task(service.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, LogError, ExceptionGroup):
            await task


# --- its own connection -----------------------------------------------------------------------------------------------


class Settings(msgspec.Struct, frozen=True):
    """The operator's settings of rotation."""

    spool: Path
    """A folder with room for one archive, which is written there before it goes into its store."""
    place: str = ""
    """The store: a folder, or s3://BUCKET/PREFIX; "" for none, and then nothing is rotated."""
    policy: Policy = Policy()


def rotating_while_leading(
    master: Master, connection: Connection, settings: Settings, key: SealKey
) -> AbstractAsyncContextManager[None]:
    """Rotate the log while the body runs and this master leads.  Raises StoreError for an invalid place."""
    cluster = connection.cluster
    log = WholeLog(connection.stream, cluster, place=settings.place)
    rotator = None
    if settings.place:
        rotator = Rotator(
            log,
            cluster,
            open_store(settings.place, cluster),
            key,
            name=master.name,
            spool=settings.spool,
            clock=time.time_ns,
            leads=lambda: master.leads,
        )

    async def room() -> int:
        return (await connection.stream.room()).taken

    async def needed() -> int | None:
        return await connection.places.needed_from(WEBHOOK)

    service = RotationService(
        log,
        cluster,
        rotator,
        settings.policy,
        name=master.name,
        clock=time.time_ns,
        leads=lambda: master.leads,
        state=lambda: master.state,
        room=room,
        needed=needed,
    )
    return rotating(service)


async def open_checked(place: str, cluster: str) -> None:
    """Check once whether a place can be used, so that a wrong one is refused at the start.  Raises StoreError."""
    store = await asyncio.to_thread(open_store, place, cluster)
    try:
        await store.names()
    finally:
        await store.close()
