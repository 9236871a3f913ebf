"""The node's lease: until when its containers may run, agent or not.

One record in the file `lease` of the runtime's folder:

    deadline boot_id agent_pid agent_start checksum

The deadline is in nanoseconds of CLOCK_BOOTTIME, which includes sleep and can't be set.  It means nothing after a reboot, so
a record of another boot has expired.  The rest names the agent process that wrote it (`0 0` once it has let go), so that the
node's guard knows when no agent is in charge any more.

The record has a fixed length and is written in place with one call: this works on a full disk, where no new file could be
created, and a reader of a half-written record detects that by the checksum and reads again.  Only Python's own library is
used: supervisors and guards of containers import this outside the virtual environment."""

import functools
import os
import time
import zlib

FILE = "lease"
_LENGTH = 128
_LOOKS = 5
_AGAIN_S = 0.002


def now_ns() -> int:
    """Return nanoseconds since the machine booted, including sleep."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def since_boot() -> float:
    """Return seconds since the machine booted, including sleep."""
    return now_ns() / 1e9


def after(seconds: float) -> int:
    """Return the deadline `seconds` from now."""
    return now_ns() + int(seconds * 1e9)


@functools.cache
def boot_id() -> str:
    """Return the id of this machine's current boot."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def start_time(pid: int) -> str:
    """Return clock ticks from boot to the start of a process: with the pid, its identity (proc(5), field 22 of stat)."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[19].decode()


def write(path: str, deadline_ns: int, agent_pid: int) -> None:
    """Write the lease.  `agent_pid` 0: the agent has let go.  Raises OSError."""
    identity = start_time(agent_pid) if agent_pid else "0"
    text = f"{deadline_ns} {boot_id()} {agent_pid} {identity}"
    record = f"{text} {zlib.crc32(text.encode()):08x}".ljust(_LENGTH - 1) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(file, record.encode(), 0)
    finally:
        os.close(file)


def left(path: str) -> "float | None":
    """Return seconds until it expires, 0 or less if it has; None if there is no record.  An unreadable one has expired."""
    fields = _read(path)
    if fields is None:
        return None
    if not fields or fields[1] != boot_id():
        return 0.0
    return (int(fields[0]) - now_ns()) / 1e9


def until(path: str, before: "int | None") -> "int | None":
    """Return the deadline (0: of another boot); None if there never was a record.  If it is unreadable or gone, return
    `before`, the value read last: removing a record ends nothing early and extends nothing."""
    fields = _read(path)
    if fields is None:
        return before
    if not fields:
        return before or 0
    return int(fields[0]) if fields[1] == boot_id() else 0


def deadline(path: str) -> int:
    """Return the deadline as written; 0 if it is of another boot, unreadable, or missing."""
    fields = _read(path)
    return int(fields[0]) if fields and fields[1] == boot_id() else 0


def looked_after(path: str) -> bool:
    """Return whether the agent that wrote it is alive and has not let go."""
    return holder(path) != 0


def holder(path: str) -> int:
    """Return the pid of the agent that wrote it, 0 if that has ended or has let go."""
    fields = _read(path)
    if not fields or fields[2] == "0" or fields[1] != boot_id():
        return 0
    try:
        return int(fields[2]) if start_time(int(fields[2])) == fields[3] else 0
    except OSError:
        return 0


def _read(path: str) -> "list[str] | None":
    """Return the record's fields, [] if it stays unreadable; None if there is no file."""
    for attempt in range(_LOOKS):
        if attempt:
            time.sleep(_AGAIN_S)
        try:
            with open(path, "rb") as file:
                text, _, checksum = file.read(_LENGTH).decode("ascii", "replace").strip().rpartition(" ")
        except FileNotFoundError:
            return None
        except OSError:
            continue
        fields = text.split(" ")
        if len(fields) == 4 and checksum == f"{zlib.crc32(text.encode()):08x}":
            return fields
    return []
