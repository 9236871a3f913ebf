"""The log as a plain user sees it: appends go to the stream, and reads come from the tenant's view.

A user may not read the log's stream.  The processes next to the masters that serve views (`replay.tenants`) answer on
a subject of the user's own; sequences, times and positions are those of the log.  The progress is that of the tenant's
own apps.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from events import subjects as names
from events.log.interface import EventLog
from events.log.records import LogClosed, LogDamaged, LogRefused, LogUnavailable, Record, on_subjects
from events.log.stores import EVERY_APP, Progress, SnapshotInfo, Snapshots
from events.log.views import Failure, Unpacking
from events.nats.bus import NatsBus
from events.requests import ViewQuestion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from events.log.records import Appended
    from events.log.stores import Files
    from events.nats.link import Link


# --- progress ---------------------------------------------------------------------------------------------------------

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
        self, *, after: int = 0, app: str = EVERY_APP, follow: bool = False
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

    async def newest(self, app: str = EVERY_APP) -> list[Record]:
        records: list[Record] = await self._value(ViewQuestion(what="newest progress", app=app), list[Record])
        return records

    async def end(self) -> int:
        seq: int = await self._value(ViewQuestion(what="end of progress"), int)
        return seq

    async def at_time(self, time: int) -> int:
        seq: int = await self._value(ViewQuestion(what="time of progress", at=time), int)
        return seq

    async def put(self, subject: str, body: bytes, *, msg_id: str = "", timeout: float = 5.0) -> None:
        raise LogRefused("only nodes report progress", code="log.view.read_only")


# --- the log, its snapshots and the bus -------------------------------------------------------------------------------

T = TypeVar("T")
USER = "user"
"""The role whose readers have views."""
_TIMEOUT_S = 5.0
_PATIENCE_S = 8.0
"""Seconds within which a server of views has to answer."""


class ViewedLog(EventLog):
    """One user's log."""

    def __init__(self, link: Link, appends: EventLog, cluster: str, user: str) -> None:
        self._link = link
        self._appends = appends
        self._subject = names.view(cluster, user)
        self._bus = NatsBus(link, "", "")
        self._names = ""
        """Pseudonyms that the answers had so far."""
        self._snapshots = ViewedSnapshots(self)
        self._progress = ViewedProgress(self.values, self.value, lambda: bool(link.client.is_closed))

    # --- asking ---------------------------------------------------------------------------------------------------------

    async def values(self, question: ViewQuestion, kind: type[T]) -> AsyncGenerator[T, None]:
        """Yield the values of an answer.  Raises LogUnavailable, LogRefused, LogDamaged."""
        ends = asyncio.get_running_loop().time() + _PATIENCE_S
        while True:
            try:
                async with contextlib.aclosing(self._values(question, kind)) as values:
                    async for value in values:
                        yield value
                return
            except LogUnavailable as error:
                # The process is about to start, or another one takes its place.
                if error.code != "log.view.no_answer" or asyncio.get_running_loop().time() > ends:
                    raise
            await asyncio.sleep(_PAUSE_S)

    async def _values(self, question: ViewQuestion, kind: type[T]) -> AsyncGenerator[T, None]:
        unpacking = Unpacking()
        try:
            async with contextlib.aclosing(
                self._bus.ask(self._subject, msgspec.json.encode(question), timeout=_TIMEOUT_S)
            ) as answer:
                async for piece in answer:
                    for message in unpacking.take(piece):
                        if "names" in message:
                            self._check_names(msgspec.msgpack.decode(message["names"], type=str))
                        elif "code" in message:
                            raise msgspec.convert(_plain(message), Failure).error()
                        else:
                            yield msgspec.msgpack.decode(message["value"], type=kind)
        except LogUnavailable as error:
            if error.code != "agent.no_answer":
                raise
            raise LogUnavailable(
                "no master serves the views of users (`dorm masters` lists the masters); requests are still stored",
                code="log.view.no_answer",
            ) from None

    async def value(self, question: ViewQuestion, kind: type[T]) -> T:
        """Return the one value of an answer.  Raises as `values`."""
        async with contextlib.aclosing(self.values(question, kind)) as answer:
            async for value in answer:
                return value
        raise LogUnavailable("a part of the answer was lost; ask again", code="agent.answer_lost")

    def _check_names(self, names: str) -> None:
        """Raises LogDamaged if others' names are other ones than before, so that states and records do not fit."""
        if self._names not in ("", names):
            raise LogDamaged(
                "the masters' key was replaced, and with it the pseudonyms of others: start this program again",
                code="log.view.renamed",
            )
        self._names = names

    # --- reading --------------------------------------------------------------------------------------------------------

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        at, pause = 0, _PAUSE_S
        while True:
            question = ViewQuestion(what="read", after=after, at=at, follow=follow)
            try:
                async with contextlib.aclosing(self.values(question, list[Record])) as batches:
                    async for batch in batches:
                        after, at, pause = batch[-1].seq, batch[-1].time, _PAUSE_S
                        if wanted := on_subjects(batch, subjects):
                            yield wanted
                if not follow:
                    return
            except LogUnavailable:
                if self._link.client.is_closed:
                    raise LogClosed(f"the connection to {self._link.url} is closed") from None
                if not follow:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def end(self) -> int:
        return await self.value(ViewQuestion(what="end"), int)

    async def at_time(self, time: int) -> int:
        return await self.value(ViewQuestion(what="time", at=time), int)

    async def record_at(self, seq: int) -> Record | None:
        if seq <= 0:
            return None
        question = ViewQuestion(what="read", after=seq - 1, until=seq)
        try:
            async with contextlib.aclosing(self.values(question, list[Record])) as batches:
                async for batch in batches:
                    return batch[0]
        except LogDamaged as error:
            if error.code != "log.truncated":
                raise
        return None

    @property
    def snapshots(self) -> Snapshots:
        return self._snapshots

    @property
    def progress(self) -> Progress:
        return self._progress

    @property
    def files(self) -> Files:
        """The own tenant's: the server keeps a user from others'."""
        return self._appends.files

    @property
    def anonymized(self) -> bool:
        return True

    async def report(self, node: str) -> Record | None:
        """Return the part of a node's last heartbeat that concerns the tenant's own containers."""
        return await self.value(ViewQuestion(what="report", node=node), Record | None)  # type: ignore[arg-type]

    # --- the rest is the log's ------------------------------------------------------------------------------------------

    async def append(
        self,
        subject: str,
        body: bytes,
        *,
        msg_id: str = "",
        expected_last: int | None = None,
        timeout: float = 5.0,
    ) -> Appended:
        return await self._appends.append(subject, body, msg_id=msg_id, expected_last=expected_last, timeout=timeout)

    async def close(self) -> None:
        return None


class ViewedSnapshots(Snapshots):
    """The states to start from."""

    def __init__(self, log: ViewedLog) -> None:
        self._log = log

    async def infos(self) -> Sequence[SnapshotInfo]:
        return await self._log.value(ViewQuestion(what="states"), list[SnapshotInfo])

    async def get(self, info: SnapshotInfo) -> bytes | None:
        fetched = await self.fetch(info)
        return fetched[1] if fetched is not None else None

    async def fetch(self, info: SnapshotInfo) -> tuple[SnapshotInfo, bytes] | None:
        question = ViewQuestion(what="state", after=info.seq)
        return await self._log.value(question, tuple[SnapshotInfo, bytes] | None)  # type: ignore[arg-type]

    async def put(self, info: SnapshotInfo, body: bytes) -> None:
        raise LogRefused("a user stores no snapshots", code="log.view.read_only")

    async def drop(self, info: SnapshotInfo) -> None:
        raise LogRefused("a user stores no snapshots", code="log.view.read_only")


class ViewedBus(NatsBus):
    """The bus of a user, who receives no heartbeats about others' containers."""

    def __init__(self, link: Link, reports: str, stream: str, log: ViewedLog) -> None:
        super().__init__(link, reports, stream)
        self._log = log

    async def last_report(self, subject: str) -> Record | None:
        return await self._log.report(subject.split(".")[3])


def _plain(fields: dict[str, msgspec.Raw]) -> dict[str, Any]:
    return {key: msgspec.msgpack.decode(value) for key, value in fields.items()}
