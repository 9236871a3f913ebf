"""Records that were put into a stream out of an archive: with the log times and ids that they had.

A server stamps what it stores with its own time, so the original one travels in a header, `Dorm-Record: <time> <id>`.  Anybody
can send a header.  It is believed only of records up to the sequence that the stream's metadata names, which is set when
the stream is made and takes the right to change streams, so no client can forge a time.

The id is in there as well and not a `Nats-Msg-Id`, for the server would take an id that came again after hours for a repeat.
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
"""In the stream's metadata: what the cluster was called in the archive.  Seals hold for a name."""
SOURCE = "dorm-imported-from"
"""In the stream's metadata: which archive, so that only the same one goes on where an import was broken off."""
_LINE = f"\r\n{HEADER}:".encode()


def header(record: Record) -> str:
    return f"{record.time} {quote(record.msg_id, safe='')}"


def original(headers: bytes) -> tuple[int, str] | None:
    """Log time (UTC nanoseconds) and id out of a message's raw headers; None where they hold none."""
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
    """0 for a stream that began empty."""
    upto = (metadata or {}).get(UPTO, "")
    return int(upto) if upto.isascii() and upto.isdigit() else 0


def renamed_upto(metadata: Mapping[str, str] | None, cluster: str) -> int:
    """Up to which sequence a cluster's records had another cluster's name when they were sealed; 0 for none."""
    return imported_upto(metadata) if (metadata or {}).get(CLUSTER, cluster) != cluster else 0
