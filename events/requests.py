"""Questions outside the log, as JSON maps: to agents, to masters, and to what serves tenants' views; and their answers.

Container output is not an event; it is read where it is stored.  Nor is how a process is: it is asked.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from events.limits import Moment, Name, Number, Sequence, Slot


class LogQuestion(msgspec.Struct, frozen=True):
    """Which container's output, and how much of it."""

    app: Name
    generation: Number
    slot: Slot
    follow: bool = False
    tail: Number | None = None
    """Lines from the end; None for all."""
    since: Moment | None = None
    """Only lines of this time (UTC ns) or later, and those whose time is not known."""
    timed: bool = False
    """Answer in `LogPiece`s.  Agents before 0.6.0 know neither this field nor those around it, and answer in plain bytes."""
    after: Name = ""
    """Only what comes after the piece with this mark, in spite of `tail` and `since`."""


class LogStretch(msgspec.Struct, frozen=True, array_like=True):
    """Output whose lines were all written at one time, if that is known."""

    time: Moment
    """UTC nanoseconds by the node's clock; 0 if it is not known.  A line that continues in the next stretch has this
    time."""
    data: bytes


class LogPiece(msgspec.Struct, frozen=True, tag="output"):
    """A part of a container's output with its times; the data of all pieces together are the plain output."""

    stretches: list[LogStretch]
    mark: Name
    """Names the place behind this piece (`LogQuestion.after`); only the container's agent can read it."""
    lost: Number = 0
    """Bytes before this piece that are missing: the container wrote faster than its output was read, and the node keeps only
    the last part."""
    lost_lines: Number | None = None
    """Their lines; None if the number is not known."""


def plain(piece: LogPiece) -> bytes:
    """Return the output without its times."""
    return b"".join(stretch.data for stretch in piece.stretches)


class Disk(msgspec.Struct, frozen=True):
    """A file system."""

    path: str
    """A folder of the process that is on it."""
    free: int
    """Bytes."""
    total: int
    inodes_free: int = 0
    inodes: int = 0
    """0 if the file system has no bound of its own."""
    read_only: bool = False


class MasterStatus(msgspec.Struct, frozen=True):
    """How a master is."""

    name: str
    build: str
    at: int
    """Time of its clock, UTC ns."""
    leading: bool
    epoch: int
    """Epoch of the last election that it has folded."""
    seq: int
    """The last record that it has folded."""
    end: int | None
    """The last record of the log; None if the log did not report it."""
    lease_left_s: float
    """Seconds for which it certainly leads; 0 while it follows."""
    disks: list[Disk] = []

    @property
    def lag(self) -> int | None:
        """Records that it has yet to fold."""
        return max(0, self.end - self.seq) if self.end is not None else None


class Delayed(msgspec.Struct, frozen=True):
    """What an agent does again and again for a container."""

    app: str
    generation: int
    slot: int
    doing: str
    reason: str
    for_s: float
    failing: bool = True


class AgentStatus(msgspec.Struct, frozen=True):
    """How an agent is."""

    node: str
    build: str
    at: int
    """Time of its clock, UTC ns."""
    joined: bool
    seq: int
    """The last record about its node that it has folded."""
    lease_left_s: float
    lease_s: float
    """The node's lease as the settings have it."""
    silence_s: float
    """Seconds since the engine last listed its containers."""
    pending: int
    """Facts that the log does not have yet."""
    runtime: str
    disks: list[Disk] = []
    processes_free: int = 0
    """Number of processes that the agent may still start."""
    processes: int = 0
    """Number of processes that the agent may have in all; 0 if it does not know."""
    processes_of: str = ""
    """Owner of that limit, for people."""
    delays: list[Delayed] = []
    """Up to 16 delays."""
    gpus: list[str] = []
    """Why it does not give some of its GPUs to apps, in words."""
    detected: str = ""
    """Source of its capacity, in words."""


class ViewQuestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """A user's question to the view of the log of their own tenant; `events.log.views` reads the answer."""

    what: Literal[
        "read", "end", "time", "states", "state", "report",
        "progress", "newest progress", "end of progress", "time of progress",
    ]  # fmt: skip
    """Records; the last sequence; the sequence at a time; the states to start from; one of these; a node's last heartbeat.
    And of the progress beside the log: records, the newest ones, the last sequence, the sequence at a time."""
    after: Sequence = 0
    """The last record that the reader has."""
    at: Moment = 0
    """Log time of the record `after`, which reveals another log in the same place; or the time that is asked about."""
    until: Sequence | None = None
    """None for the end of the log as it is now."""
    follow: bool = False
    """Go on with records to come, without end."""
    node: Name = ""
    app: Name = "*"
