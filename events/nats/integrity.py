"""Checks that the stream that holds a log is whole, and configured so that no client can alter it.

Without reading the log, they verify:

* the server's own count: the first sequence is 1, or what comes before it lies in an archive, and none is deleted or lost
  between it and the last,
* the configuration: it forbids delete, roll-up and expiry, and the server stores before it acknowledges.

A stream that starts after its first record is complete only if a master's signed `LogRotated` says that the earlier
records are in an archive (`Rotated`, which also removes them).  Any other removal of records is damage.

A tail that is cut off cleanly looks like a shorter log; a master that has read more of it notices
(`dorm.master.sealing`).  After a kill, a server whose files are damaged cuts the log off before the damage, and
reports only how many bytes it could not read.  A byte changed in a file of a cleanly stopped server shows only when
the record is read: the server omits it, and readers detect the gap (`LogDamaged`).  `dorm replay verify` reads all,
and checks the seals.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import nats.js.errors

from events import subjects
from events import subjects as names
from events.chain import is_signed_cut
from events.codec import decode
from events.kinds import LogRotated
from events.log.records import Archived, LogDamaged, LogError, LogRefused
from events.logger import Logger
from events.nats.link import as_log_errors
from events.nats.reader import last_record, record_at
from events.nats.settings import api_request, checked_info, stream_state
from events.nats.streams import log_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from events.log.records import Record
    from events.nats.link import Link
    from events.nats.reader import Reader


# --- the past in archives ---------------------------------------------------------------------------------------------

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
        if (
            record is None
            or record.seq <= self._imported
            or not isinstance(event, LogRotated)
            or not is_signed_cut(event)
        ):
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


# --- the present in the stream ----------------------------------------------------------------------------------------

_log = Logger(__name__)
_BACK = "stop the masters, and put the server's data back from a backup, or import an archive as a new cluster"
_BACK_FROM_OTHERS = (
    "this is the copy of NATS server {name}: stop that server, move its folder of this stream away, and start it again, so "
    "that it gets a new copy from the others; if the others have lost the same, restore a backup"
)
_AROUND_A_MESSAGE = 64 * 1024
"""Bytes, more than a message needs in addition to its headers and its body."""
_UNLIMITED = ("max_msgs", "max_age", "max_msgs_per_subject")
_MUST_BE = {
    "retention": "limits",
    "discard": "new",
    "storage": "file",
    "deny_delete": True,
}
_MUST_NOT_BE = (
    "no_ack", "allow_rollup_hdrs", "allow_msg_ttl", "allow_msg_counter", "mirror", "sources", "subject_transform",
)  # fmt: skip
"""Settings by which records could vanish, come from elsewhere, or be acknowledged unstored."""


async def check_stream(link: Link, cluster: str) -> None:
    """Check the stream.  Raises LogDamaged, and what nats-py raises."""
    # Without details the server does not report what it lost.
    stream = log_stream(cluster)
    info = await checked_info(link, stream, _TIMEOUT_S, deleted_details=True)
    cut = await Rotated(link, cluster, stream).cut() if info["state"].get("first_seq", 0) > 1 else None
    if trouble := missing(info["state"], archived=cut.upto if cut is not None else 0):
        raise LogDamaged(f"stream {stream} has lost records: {trouble}; {_way_back(info)}", code="log.records_lost")
    last = info["state"].get("last_seq", 0)
    if (
        last
        and await record_at(link, stream, last, _TIMEOUT_S) is None
        and not await _continues_after(link, stream, last)
    ):
        raise LogDamaged(
            f"stream {stream} has lost records: the last one, {last:,}, can't be read; {_way_back(info)}",
            code="log.records_lost",
        )
    if lost := (info["state"].get("lost") or {}).get("bytes", 0):
        replicated = info["config"].get("num_replicas", 1) > 1  # Then the others have what one could not read.
        if lost > link.client.max_payload + _AROUND_A_MESSAGE and not replicated:
            raise LogDamaged(
                f"stream {stream} has lost records: {lost:,} bytes could not be read; {_BACK}", code="log.records_lost"
            )
        # A message that was being written when its machine lost power was never acknowledged, so it is not a loss.
        _log.warning("the server could not read the end of its data when it started", stream=stream, bytes=lost)
    if changed := unprotected(info["config"], cluster):
        raise LogDamaged(
            f"stream {stream} is not configured as the log needs it: {'; '.join(changed)}; undo that with `nats stream edit`, "
            "and `dorm replay verify` shows whether a record was altered meanwhile",
            code="log.reconfigured",
        )


async def _continues_after(link: Link, stream: str, seq: int) -> bool:
    """Return whether the server has stored more since: then readers check that record."""
    state = (await checked_info(link, stream, _TIMEOUT_S))["state"]
    return bool(state.get("last_seq", 0) != seq)


def _way_back(info: dict[str, Any]) -> str:
    name = (info.get("cluster") or {}).get("leader")
    return _BACK_FROM_OTHERS.format(name=name) if info["config"].get("num_replicas", 1) > 1 and name else _BACK


def missing(state: dict[str, Any], archived: int = 0) -> str:
    """Return what is missing from a stream with this state, "" if nothing is. Records up to `archived` are in
    archives."""
    first, last = state.get("first_seq", 0), state.get("last_seq", 0)
    if first > archived + 1:
        return f"it begins at {first}" if last >= first else f"all up to {last} are gone"
    if last and (deleted := state.get("num_deleted", 0)):
        return f"{deleted:,} of {last:,} are deleted or can't be read"
    lost = state.get("lost") or {}
    if lost.get("msgs"):
        return f"the server could not read {len(lost['msgs']):,} of {last:,} when it started"
    if state.get("messages", 0) != last - max(0, first - 1):
        return f"{state.get('messages', 0):,} are there, from number {max(1, first):,} to {last:,}"
    return ""


def unprotected(config: dict[str, Any], cluster: str) -> list[str]:
    """Return the settings that do not protect the log.

    A limit of its size is not among them: the server refuses new records then, and loses none (`settings.limits`)."""
    faults = [
        f"{name} is {config.get(name)!r} and not {wanted!r}"
        for name, wanted in _MUST_BE.items()
        if config.get(name) != wanted
    ]
    faults += [f"{name} is set" for name in _MUST_NOT_BE if config.get(name)]
    if config.get("persist_mode") == "async":
        faults.append("persist_mode is 'async'")
    if config.get("subjects") != [names.log_subjects(cluster)]:
        faults.append(f"it takes {', '.join(config.get('subjects') or ['nothing'])}")
    faults += [f"{name} is {config[name]}" for name in _UNLIMITED if config.get(name, -1) > 0]
    return faults
