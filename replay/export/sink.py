"""What an export writes into: formats of files, and sinks that take records."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from events.log.records import Record
    from replay.frames import Snapshot


class FileFormat(StrEnum):
    """What kind of file to write."""

    archive = "archive"
    parquet = "parquet"
    ndjson = "ndjson"
    cloudevents = "cloudevents"


class Sink(Protocol):
    """What takes records and makes a file of them.  Called in threads, one call after the other."""

    records: int
    """Records of which anything was written."""
    rows: int | None

    def take(self, records: list[Record], due: list[Snapshot]) -> None:
        """The next ones, wanted or not, and the snapshots that are due among them."""
        ...

    def finish(self) -> None: ...
