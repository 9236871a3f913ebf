"""File formats of exports, and the interface of sinks, which take records."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from events.log.records import Record
    from replay.frames import Snapshot


class FileFormat(StrEnum):
    """The kind of file to write."""

    archive = "archive"
    parquet = "parquet"
    ndjson = "ndjson"
    cloudevents = "cloudevents"


class Sink(Protocol):
    """Takes records and makes a file of them.  Called in threads, one call after the other."""

    records: int
    """Records with any written row."""
    rows: int | None

    def take(self, records: list[Record], due: list[Snapshot]) -> None:
        """Take the next records, selected or not, and the snapshots that are due among them."""
        ...

    def finish(self) -> None: ...
