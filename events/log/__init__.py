"""The log's interface, and everything that does not depend on a server.

    records      `Record`, `Appended`, the errors, and retries while the log does not answer
    interface    `ReadableLog`, `EventLog`, `Bus`; a log and its progress read as one; the snapshot to fold from
    stores       what a cluster keeps next to its log: shipped folders, snapshots, progress, the nodes' parts
    memory       a log and a bus in memory, for tests and simulations
    leadership   the interface of the masters' lease, and one in memory
    views        how a tenant's view of a log comes over the bus

Start with `interface`.  Imports nothing but the vocabulary.  One conformance suite for each interface
(`tests/events/log`) holds every implementation to it.  `__all__` is what programs outside this project may rely on; a
log itself comes from `events.nats.connection.Connection`, `events.archive.segments.open_archive`, or `MemoryLog`.
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
from events.log.stores import ReadableSnapshots, SnapshotInfo, Snapshots

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
