"""The log's interface, and everything that does not depend on a server.

    records      `Record`, `Appended`, and the errors
    interface    `ReadableLog`, `EventLog`, `Bus`
    snapshots    copies of the state beside a log, which bound how much a start has to fold
    progress     what apps report between two marks, in a stream beside a log
    combined     a log and the stream of progress beside it, read as one
    parts        what each node's agent follows: the last part of each node, beside a log
    files        the folders that clients ship for their apps, in a store beside a log
    memory       a log and a bus in memory, for tests and simulations
    leadership   the interface of the masters' lease, and one in memory
    waiting      retries while the log does not answer
    nearest      the snapshot to fold from
    views        how a tenant's view of a log comes over the bus
    imported     records in a stream that come from an archive: their original times and ids

Start with `interface`.  Imports nothing but the vocabulary.  One conformance suite for each interface (`tests/events/log`)
holds every implementation to it.  `__all__` is what programs outside this project may rely on; a log itself comes from
`events.nats.connection.Connection`, `events.archive.opening.open_archive`, or `MemoryLog`.
"""

from __future__ import annotations

from events.log.interface import Answerer, AskRefused, Bus, EventLog, ReadableLog
from events.log.memory import MemoryBus, MemoryLog
from events.log.records import (
    Appended,
    Archived,
    LogClosed,
    LogDamaged,
    LogError,
    LogFull,
    LogRefused,
    LogTooOld,
    LogUnavailable,
    NotSent,
    Overtaken,
    Record,
)
from events.log.snapshots import ReadableSnapshots, SnapshotInfo, Snapshots

__all__ = [
    "Answerer",
    "Appended",
    "Archived",
    "AskRefused",
    "Bus",
    "EventLog",
    "LogClosed",
    "LogDamaged",
    "LogError",
    "LogFull",
    "LogRefused",
    "LogTooOld",
    "LogUnavailable",
    "MemoryBus",
    "MemoryLog",
    "NotSent",
    "Overtaken",
    "ReadableLog",
    "ReadableSnapshots",
    "Record",
    "SnapshotInfo",
    "Snapshots",
]
