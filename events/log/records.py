"""Records of a log, the errors that logs raise, and how to wait for a log that does not answer.

`until_answered` retries without end, and reports the wait.  Masters and agents may start before their NATS servers, or
while those elect their leaders, and continue once the log is there.  Commands give up instead, with the reason.

*Records imported* from an archive into a stream keep their original log times and ids.  A server stamps each record
with its own time, so the original time travels in a header, `Dorm-Record: <time> <id>`.  Any client can send such a
header.  It counts only up to the sequence in the stream's metadata, which is set when the stream is created and
requires the right to change streams, so no client can forge a time.  The id travels in the same header, not as a
`Nats-Msg-Id`: within its duplicate window the server would drop an id that recurs hours apart in the archive.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote

import msgspec

from events.errors import DormError
from events.logger import Logger
from events.subjects import matches

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from events.kinds import LogRotated


# --- records and errors -----------------------------------------------------------------------------------------------


class LogError(DormError):
    """Root of the errors that a log raises; every message is one line for people."""

    code = "log.failed"


class LogUnavailable(LogError):
    """No answer in time.  An append may or may not have been stored."""

    code = "log.unavailable"


class LogClosed(LogUnavailable):
    """No answer, now or later: the connection is closed."""

    code = "log.closed"


class NotSent(LogUnavailable):
    """Nothing was sent, and nothing is queued to be sent later."""

    code = "log.not_sent"


class LogFull(LogUnavailable):
    """No room for more, for now."""

    code = "log.full"


class LogRefused(LogError):
    """The log will never store this as it is."""

    code = "log.refused"


class Archived(LogRefused):
    """These records are in an archive and no longer in the log's stream (`events.archive.whole` reads both)."""

    code = "log.archived"

    def __init__(self, upto: int, cut: LogRotated | None = None) -> None:
        """Records up to `upto` are archived; `cut` names the newest archive and its place."""
        where = f" at {cut.place}" if cut is not None and cut.place else ""
        super().__init__(
            f"records up to {upto:,} are in the log's archives{where}, which are not read here; name them with --archives, or "
            f"begin after record {upto:,}"
        )
        self.upto = upto
        self.cut = cut


class LogTooOld(LogRefused):
    """The server lacks what the log needs."""

    code = "log.server_too_old"


class Overtaken(LogError):
    """Another writer appended to the subject first."""

    code = "log.overtaken"


class LogDamaged(LogError):
    """The records read can't be the whole log."""

    code = "log.damaged"


class Record(msgspec.Struct, gc=False, array_like=True):
    """One raw message of the log.  Export copies these bytes, so fields that this build does not know are kept."""

    seq: int
    """Position in the log, from 1, without gaps."""
    time: int
    """Log time, UTC nanoseconds, set by the log's store.  Logs in memory and in files never go back; a server's clock may, so
    the fold takes the later of this and the last one."""
    subject: str
    body: bytes
    msg_id: str = ""


class Appended(msgspec.Struct, frozen=True):
    """Where an append was stored; `duplicate` if a record with this id was already there."""

    seq: int
    duplicate: bool = False


def on_subjects(records: list[Record], patterns: Sequence[str]) -> list[Record]:
    """Return the records whose subject matches any pattern; without patterns, all of them."""
    if not patterns:
        return records
    # Few subjects recur in many records, so each one is matched once.
    wanted = {
        subject
        for subject in {record.subject for record in records}
        if any(matches(pattern, subject) for pattern in patterns)
    }
    return [record for record in records if record.subject in wanted]


# --- waiting ----------------------------------------------------------------------------------------------------------

T = TypeVar("T")
_SHORTEST_S, _LONGEST_S = 0.2, 2.0
"""Bounds of the pause between two tries, in seconds."""
_SAY_AFTER_S = 3.0
_SAY_AGAIN_S = 60.0
_log = Logger(__name__)


async def until_answered(ask: Callable[[], Awaitable[T]], doing: str) -> T:
    """Call `ask` until it no longer raises LogUnavailable, and return its result.  `doing` names for people what waits; it is
    logged after a few seconds, now and then during the wait, and at its end.  Raises LogClosed, and whatever else `ask`
    raises."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    pause, say_at, due = _SHORTEST_S, began + _SAY_AFTER_S, False
    while True:
        try:
            answer = await ask()
        except LogClosed:
            raise
        except LogUnavailable as error:
            now = loop.time()
            if now >= say_at:
                _log.warning("waiting for the log", doing=doing, waited_s=round(now - began), reason=str(error))
                say_at, due = now + min(_SAY_AGAIN_S, max(_SAY_AFTER_S, now - began)), True
        else:
            if due:
                _log.warning("the log answers", doing=doing, waited_s=round(loop.time() - began))
            return answer
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_S)


# --- imported records -------------------------------------------------------------------------------------------------

HEADER = "Dorm-Record"
UPTO = "dorm-imported"
"""Key in the stream's metadata for the last sequence that comes from the archive."""
CLUSTER = "dorm-imported-cluster"
"""Key in the stream's metadata for the cluster's name in the archive.  Seals hold for one name."""
SOURCE = "dorm-imported-from"
"""Key in the stream's metadata for the archive, so that an interrupted import continues only from the same one."""
_LINE = f"\r\n{HEADER}:".encode()


def header(record: Record) -> str:
    return f"{record.time} {quote(record.msg_id, safe='')}"


def original(headers: bytes) -> tuple[int, str] | None:
    """Return log time (UTC nanoseconds) and id from a message's raw headers; None if they hold none."""
    begin = headers.find(_LINE)
    if begin < 0:
        return None
    begin += len(_LINE)
    time, _, msg_id = headers[begin : headers.find(b"\r\n", begin)].decode(errors="replace").strip().partition(" ")
    try:
        return int(time), unquote(msg_id)
    except ValueError:
        return None


def imported_upto(metadata: Mapping[str, str] | None) -> int:
    """Return the last imported sequence; 0 for a stream that started empty."""
    upto = (metadata or {}).get(UPTO, "")
    return int(upto) if upto.isascii() and upto.isdigit() else 0


def renamed_upto(metadata: Mapping[str, str] | None, cluster: str) -> int:
    """Return the last sequence whose record was sealed under another cluster's name; 0 for none."""
    return imported_upto(metadata) if (metadata or {}).get(CLUSTER, cluster) != cluster else 0
