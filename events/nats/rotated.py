"""The log's past in archives, as its stream shows it: the newest signed cut, and the removal of records up to it.

A stream that starts after its first record is complete only if a master's signed `LogRotated` says that the earlier
records are in an archive. Any other removal of records is damage.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import nats.js.errors

from events import subjects
from events.chain.cuts import is_signed
from events.codec import decode
from events.kinds import LogRotated
from events.log.records import Archived, LogDamaged, LogError, LogRefused
from events.nats.link import as_log_errors
from events.nats.reader import last_record
from events.nats.stream_state import api_request, checked_info, stream_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from events.log.records import Record
    from events.nats.link import Link
    from events.nats.reader import Reader

_TIMEOUT_S = 5.0
_IDLE_S = 300.0
"""Seconds without a wanted record after which a reader asks how far it has seen everything: far less than the age of the
records that usually stay in a stream."""
_PURGE_S = 30.0
"""Seconds: a server that removes millions of records takes longer than for other requests."""


class Rotated:
    """The cuts of one cluster's log."""

    def __init__(self, link: Link, cluster: str, stream: str, imported: int = 0) -> None:
        self._link = link
        self._stream = stream
        self._subject = subjects.rotations(cluster)
        self._imported = imported
        self._newest: LogRotated | None = None
        """The newest cut that was read."""

    async def cut(self) -> LogRotated | None:
        """Return the newest cut, None if there is none that a key signed.  Those that were imported with their log speak of
        another stream, so they don't count.  Raises LogUnavailable, LogRefused."""
        record = await last_record(self._link, self._stream, self._subject, _TIMEOUT_S, imported=self._imported)
        event = decode(record) if record is not None else None
        if record is None or record.seq <= self._imported or not isinstance(event, LogRotated) or not is_signed(event):
            return None
        # A record can't speak of what came after it.
        self._newest = event if event.after < event.upto < record.seq else None
        return self._newest

    async def check_start(self, first: int) -> int:
        """Return the sequence before the stream's first record, `first`. Raises LogDamaged if removed records are in
        no archive, LogUnavailable, LogRefused."""
        if first <= 1:
            return 0
        newest = self._newest
        if newest is None or newest.upto < first - 1:
            newest = await self.cut()
        if newest is None or newest.upto < first - 1:
            raise LogDamaged(
                f"the log begins at {first:,}, and no master has archived the records before it: something else removed "
                "them; put the server's data back from a backup",
                code="log.records_removed",
            )
        return first - 1

    async def before_start(self, after: int, first: int) -> Archived:
        """Return the error for a reader that wants records after `after` from a stream that begins at `first`.  Raises as
        `check_start`."""
        await self.check_start(first)
        return Archived(first - 1, self._newest)

    async def next(self, reader: Reader, after: int, patterns: Sequence[str]) -> tuple[list[Record], int]:
        """Return the next records for a reader that follows some subjects (none, after a while), and up to which
        sequence it has seen everything.

        Such a reader knows only the records that it wants.  If none comes for long, the log may be rotated past the last one,
        and a reader that reconnects would ask for records in an archive.  So now and then it asks how far it is.  Raises as
        `Reader.next`."""
        try:
            async with asyncio.timeout(_IDLE_S):
                return await reader.next(), after
        except TimeoutError:
            return [], await self._seen(after, patterns)

    async def _seen(self, after: int, patterns: Sequence[str]) -> int:
        """Return the log's end if there is no wanted record after `after`, otherwise `after`."""
        try:
            with as_log_errors("looking up the end of the log"):
                end = int((await stream_state(self._link, self._stream, _TIMEOUT_S))["last_seq"])
            for pattern in patterns:
                last = await last_record(self._link, self._stream, pattern, _TIMEOUT_S)
                if last is not None and last.seq > after:
                    return after
        except LogError:
            return after
        return max(after, end)

    async def purge(self, upto: int) -> None:
        """Remove the records up to the newest cut, or an earlier one.  Repeating it changes nothing.  Raises LogRefused if the
        cut does not allow it, or the server; LogUnavailable."""
        cut = await self.cut()
        if cut is None or upto > cut.upto:
            raise LogRefused(
                f"records up to {upto:,} can't be removed: no cut on the log states that they are in an archive",
                code="log.not_archived",
            )
        with as_log_errors("removing archived records from the log"):
            info = await checked_info(self._link, self._stream, _TIMEOUT_S)
            if info["state"]["first_seq"] > upto:
                return
            if info["config"].get("deny_purge"):
                raise LogRefused(
                    "the stream of this log was made by an earlier release and can't be purged; move the log once: stop the "
                    "masters, `dorm replay export`, remove the stream with `nats stream rm`, and `dorm replay import` under "
                    "the same name",
                    code="log.purge_denied",
                )
            try:
                await api_request(self._link, f"STREAM.PURGE.{self._stream}", {"seq": upto + 1}, _PURGE_S)
            except nats.js.errors.ServerError as error:
                raise LogRefused(f"the server removed no records: {error.description}") from None
