"""Records imported from an archive into a stream: their original log times and ids.

A server stamps each record with its own time, so the original time travels in a header, `Dorm-Record: <time> <id>`.
Any client can send such a header.  It counts only up to the sequence in the stream's metadata, which is set when the
stream is created and requires the right to change streams, so no client can forge a time.

The id travels in the same header, not as a `Nats-Msg-Id`: within its duplicate window the server would drop an id that recurs
hours apart in the archive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from events.log.records import Record

HEADER = "Dorm-Record"
UPTO = "dorm-imported"
"""In the stream's metadata: the last sequence that comes from the archive."""
CLUSTER = "dorm-imported-cluster"
"""In the stream's metadata: the cluster's name in the archive.  Seals hold for one name."""
SOURCE = "dorm-imported-from"
"""In the stream's metadata: which archive, so that an interrupted import continues only from the same one."""
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
